"""Random feature attention (Peng et al. 2021, arXiv:2103.02143): O(T M (H + D)) time."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._inputs import check_qkv
from attn._settings import check_count, is_number
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import orthogonal_features, random_fourier, unit
from attn.masks import FULL, Causal, Mask


def rfa_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    log_decay: Float[Array, "*B S N"] | None = None,
    sigma: Float[Array, "K H"] | None = None,
    features: int = 64,
    seed: int = 0,
    floor: float = 0.0,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """phi(q_i) . S_i / max(phi(q_i) . z_i, floor), sines and cosines in place of exponentials.

    phi(x) = [sin(W x), cos(W x)] / sqrt(M) of x / |x|; W are the `features` rows that `seed` draws,
    times `sigma` (1 by default, learned in the paper). S_i = sum_j phi(k_j) v_j^T and
    z_i = sum_j phi(k_j) over the visible keys; with the gate g = exp(`log_decay`), under `Causal`
    only, S_i = g_i S_(i-1) + (1 - g_i) phi(k_i) v_i^T and z_i alike.

    Products estimate exp(-|q - k|^2 / 2), one key's weight, with either sign. Normalisers near 0
    are used as they are with `floor` 0, the paper's formula. The authors' causal kernel has a
    floor, of 100 / M in these units (it scales features by a tenth, and 1 is the least); their
    cross-attention puts it under |phi(q_i) . z_i|, which differs here below -floor alone. A row of
    a smaller normaliser is no mean of values, but training no longer meets quotients of any size.
    With the gate, which their code lacks, normalisers are at most 1: a floor above, as 100 / M of
    64 features, divides all rows alike and normalises none. Rows of W are orthogonal within blocks
    of H, one of the authors' two choices. O(T) time and memory. Honours `Causal`, `Padding` and
    `Segments` joined by `&`, else NotImplementedError. Raises ValueError for arrays of the wrong
    shape, features below 1, a negative seed and a floor but 0 or 1e-30 to 1e30.
    """
    check_qkv(q, k, v, mask)
    sigma = jnp.ones(k.shape[-2:], jnp.float32) if sigma is None else sigma
    gates = {} if log_decay is None else {"log_decay": log_decay}
    gated = log_decay is not None
    rfa = RFA(features=features, seed=seed, gated=gated, floor=floor, chunk=chunk)
    return rfa(q, k, v, mask=mask, bias=bias, sigma=sigma, **gates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RFA(Linearized):
    """Random Fourier features of unit queries and keys, `gated` or not (Peng et al. 2021).

    One draw, by `seed`, for all heads; the authors draw for each head and layer, and redraw in
    training. Not `gated`, it trains with the authors' `floor`, 100 / `features`, where without one
    it may not (configs/zoo.py).
    """

    normalised: ClassVar = True
    # of either sign, the features leave some normalisers near 0, and divide rounding by them
    room: ClassVar[float] = 8.0
    features: int = 64
    seed: int = 0
    gated: bool = False
    floor: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_count("features", self.features)
        check_count("seed", self.seed, least=0)
        if not is_number(self.floor) or not (self.floor == 0 or 1e-30 <= self.floor <= 1e30):
            want = "0 or a number from 1e-30 to 1e30"
            raise ValueError(f"floor: expected {want}, got {self.floor!r}")

    @property
    def requires(self):
        return (Causal,) if self.gated else ()

    @property
    def crosses(self):
        return not self.gated

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        return {"sigma": jnp.ones((num_kv_heads, head_dim), jnp.float32)}

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"log_decay": (num_heads,)} if self.gated else {}

    def terms(self, q, k, *, sigma, log_decay=None):
        N, K, H = q.shape[-2], *k.shape[-2:]
        drawn = orthogonal_features(self.seed, self.features, H).astype(k.dtype)
        projection = drawn[None] * sigma[:, None]  # [K, M, H]
        # |q| and |k| would only scale the weights of a row: the paper takes both to be 1
        phi = lambda x, w: random_fourier(unit(x)[0], w)[0]
        fq, fk = phi(q, jnp.repeat(projection, N // K, 0)), phi(k, projection)
        if log_decay is None:
            return Terms(fq, fk)
        write = -jnp.expm1(log_decay)[..., None]
        return Terms(fq, jnp.repeat(fk, N // K, -2) * write, log_decay[..., None])

    def map_flops(self, head_dim):
        return 2 * self.features * head_dim

    @classmethod
    def examples(cls):
        plain, gated = cls(features=32, chunk=8), cls(features=32, chunk=8, gated=True)
        return plain, gated, cls(features=32, chunk=8, floor=2)
