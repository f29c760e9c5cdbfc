"""Lightning attention (Qin et al. 2024, arXiv:2401.04658): linear attention, fixed decays. O(T)."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from attn._settings import is_number
from attn.linearized._family import Linearized, fixed
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask
from attn.norms import HeadNorm


def lightning_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    layer_fraction: float = 0.0,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T silu(q_t), with S_t = exp(-8 h / N (1 - l / L)) S_{t-1} + silu(k_t) v_t^T.

    Lightning Attention-2 (Qin et al. 2024, arXiv:2401.04658; in MiniMax-01, arXiv:2501.08313),
    unscaled as in the paper: head h of N, `layer_fraction` l / L in [0, 1], so that deeper layers
    forget less. The authors' code has ALiBi's slopes, exp(-2^(-8 (h + 1) / N) (1 - l / (L - 1))),
    which forget far less, and a silu of v. The paper is causal; without `Causal` a key decays with
    its distance either way. O(T) time and memory. Raises NotImplementedError for masks other than
    Causal, Padding and Segments and for a bias, ValueError for a fraction outside [0, 1].
    """
    return Lightning(layer_fraction=layer_fraction, chunk=chunk)(q, k, v, mask=mask, bias=bias)


lightning_attention.heads_alike = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lightning(Linearized):
    """Linear attention with fixed decays that slow down with depth (Lightning, Qin et al. 2024)."""

    heads_alike: ClassVar = False  # each has a decay of its own
    published_norm: ClassVar = HeadNorm(together=True)
    layer_fraction: float = 0.0
    output_gate: str | None = "sigmoid"
    output_norm: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not is_number(self.layer_fraction) or not 0 <= self.layer_fraction <= 1:
            raise ValueError(f"layer_fraction: expected 0 to 1, got {self.layer_fraction!r}")

    @classmethod
    def for_layers(cls, layers: int, **settings) -> tuple["Lightning", ...]:
        """A record for each layer, layer l of L with the fraction l / L."""
        return tuple(cls(layer_fraction=layer / layers, **settings) for layer in range(layers))

    def terms(self, q, k) -> Terms:
        N = q.shape[-2]
        log_decay = -8 / N * (1 - self.layer_fraction) * np.arange(N)
        return Terms(jax.nn.silu(q), jax.nn.silu(k), fixed(log_decay, k))

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(chunk=5, layer_fraction=0.75)
