"""What a mask says of the tokens of each row, as a layer without scores can use it."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._axes import aligned
from attn._inputs import check_mask, refuse_rest
from attn.biases import as_bias
from attn.masks import Causal, Mask, Padding, Segments


@dataclasses.dataclass(frozen=True)
class Visible:
    """A conjunction of `Causal`, `Padding` and `Segments`, taken apart; None is no such term."""

    mask: Mask
    causal: bool
    padding: Padding | None
    segments: Segments | None

    def answered(self, y: Float[Array, "*B T W"]) -> Float[Array, "*B T W"]:
        """y, 0 where a query is to see nothing."""
        if self.padding is None or self.padding.queries is None:
            return y
        asks, y = aligned(self.padding.queries[..., None], y)
        return jnp.where(asks, y, 0)

    def same(self, back: int) -> Bool[Array, "*B T"]:
        """Whether the token at t sees the document of the one at t - back."""
        queries, keys = self.segments.ids
        return jnp.equal(*aligned(queries, jnp.roll(keys, back, axis=-1)))


def visible(name: str, honours: tuple[type[Mask], ...], x, mask: Mask, bias) -> Visible:
    """The mask, checked for rows x [*B, T, W].

    Raises TypeError for what is no mask, ValueError for shapes, NotImplementedError for a bias and
    for terms that are not in `honours`.
    """
    check_mask(mask)
    T = x.shape[-2]
    mask = mask.sized(T, T)
    mask.check(x.shape[:-2], T, T)
    refuse_rest(name, mask.take(*honours)[1], as_bias(bias), honours)
    causal, padding, segments = mask.take(Causal, Padding, Segments)[0]
    if causal is not None and causal.offset:
        raise NotImplementedError(
            f"mask: {name} sees itself and the past under Causal(), no other offset, got {causal}"
        )
    return Visible(mask, causal is not None, padding, segments)
