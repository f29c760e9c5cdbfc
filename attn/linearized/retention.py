"""Retention (RetNet, Sun et al. 2023, arXiv:2307.08621): linear attention, fixed decays. O(T)."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float

from attn.linearized._family import Linearized, fixed
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask


def retention_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t / sqrt(H), with S_t = gamma_h S_{t-1} + k_t v_t^T, gamma_h = 1 - 2^(-5 - h).

    Multi-scale retention (Sun et al. 2023, arXiv:2307.08621) without its normalisation of scores,
    which the norm of each head's output cancels; rotary is left to the layer, at rates
    10000^(-2c / H) where the authors' code has 10000^(-2c / (H - 2)) for pair c. The paper is
    causal; without `Causal` the weight is gamma^|i - j|. O(T) time and memory. Raises
    NotImplementedError for masks other than Causal, Padding and Segments and for a bias.
    """
    return Retention(chunk=chunk)(q, k, v, mask=mask, bias=bias)


retention_attention.heads_alike = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention(Linearized):
    """Linear attention with a fixed decay 1 - 2^(-5 - h) for each head (RetNet, Sun et al. 2023).

    A layer's values are as wide as its keys, where the paper's are twice as wide; its norm learns a
    scale, which the authors' does not.
    """

    heads_alike: ClassVar = False  # each has a decay of its own
    output_gate: str | None = "silu"
    output_norm: bool = True

    def terms(self, q, k) -> Terms:
        log_gamma = np.log1p(-(2.0 ** (-5.0 - np.arange(q.shape[-2]))))
        return Terms(q * q.shape[-1] ** -0.5, k, fixed(log_gamma, k))

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
