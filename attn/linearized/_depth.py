"""OfLayer: a variant that depends on the layer it is in; and the norm that RWKV's share."""

import dataclasses

from attn._settings import check_count, is_integer
from attn.linearized._family import Linearized
from attn.norms import HeadNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfLayer(Linearized):
    """The variant in layer `layer`, counted from 0, of a stack of `layers`."""

    layer: int = 0
    layers: int = 1

    def __post_init__(self):
        # before the checks of requests to a layer, which depend on the depth
        check_count("layers", self.layers)
        if not is_integer(self.layer) or not 0 <= self.layer < self.layers:
            raise ValueError(f"layer: expected 0 to {self.layers - 1}, got {self.layer!r}")
        super().__post_init__()

    @classmethod
    def for_layers(cls, layers: int, **settings) -> tuple["OfLayer", ...]:
        """A record for each layer, as published."""
        return tuple(cls(layer=layer, layers=layers, **settings) for layer in range(layers))

    @property
    def depth(self) -> float:
        """From 0 in the first layer to 1 in the last."""
        return self.layer / max(1, self.layers - 1)

    @property
    def remaining(self) -> float:
        """The fraction of the layers from this one on: 1 in the first."""
        return 1 - self.layer / self.layers


def rwkv_norm(form: OfLayer) -> HeadNorm:
    """The group norm of RWKV's heads, whose scale starts smaller in lower layers, as in the
    authors' code (BlinkDL/RWKV-LM)."""
    return HeadNorm(centred=True, start=((1 + form.layer) / form.layers) ** 0.7)
