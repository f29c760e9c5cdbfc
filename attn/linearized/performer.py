"""Performer (Choromanski et al. 2020, arXiv:2009.14794): FAVOR+, O(T M (H + D)) time."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._core import check_count, check_qkv, refuse_rest, seen_array
from attn.linearized import _scan
from attn.linearized.feature_maps import favor, orthogonal_features
from attn.masks import FULL, Causal, Mask, Padding, Segments
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding, Segments)


def performer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    projection: Float[Array, "M H"],
    chunk: int = 128,
) -> Float[Array, "*B T N D"]:
    """An unbiased estimate of softmax attention's numerator and denominator by M features.

    phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(M) with x' = x / H^(1/4); `projection` W has rows as
    N(0, I) (`orthogonal_features`). Strictly causal under `Causal`: keys are stabilised by a
    running maximum over each query's own past. Honours `Causal`, `Padding`, `Segments` joined by
    `&`, else NotImplementedError. Raises ValueError for a projection of the wrong width.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("chunk", chunk)
    (causal, padding, segments), rest = mask.take(*HONOURS)
    refuse_rest("performer", rest, bias, HONOURS)
    return _scan.attend(
        _phi,
        (_checked(projection, q.shape[-1]),),
        q,
        k,
        v,
        causal=causal,
        padding=padding,
        segments=segments,
        chunk=chunk,
    )


def _phi(x, projection):
    """exp(q . k / sqrt(H)) is the kernel of x / H^(1/4)."""
    return favor(x * x.shape[-1] ** -0.25, projection)


def _checked(projection, head_dim):
    if projection.ndim != 2 or projection.shape[1] != head_dim or projection.shape[0] == 0:
        raise ValueError(
            f"projection: expected [features, {head_dim}], got {list(projection.shape)}"
        )
    return projection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performer(Mechanism):
    """Positive orthogonal random features for the softmax kernel (Choromanski et al. 2020)."""

    honours: ClassVar = HONOURS
    features: int = 256
    seed: int = 0
    chunk: int = 128

    def __post_init__(self):
        for name, least in (("features", 1), ("chunk", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least=least)

    def projection(self, head_dim: int) -> Float[Array, "M H"]:
        """The features drawn by `seed`."""
        return jnp.asarray(orthogonal_features(self.seed, self.features, head_dim))

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        projection = self.projection(q.shape[-1])
        return performer_attention(
            q, k, v, mask=mask, bias=bias, projection=projection, chunk=self.chunk
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, _ = check_qkv(q, k, v, mask)
        params = (self.projection(q.shape[-1]),)
        return _scan.dense(_phi, params, q, k, v, seen_array(mask, q.shape[-3], k.shape[-3]))

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        refuse_rest("performer", mask.take(*HONOURS)[1], bias, HONOURS)
        params = (self.projection(q.shape[-1]),)
        return _scan.dense_weights(_phi, params, q, k, seen_array(mask, q.shape[-3], k.shape[-3]))

    def flops(self, T, S, N, K, H, D):
        return 2 * self.features * (H + D) * (S * K + T * N)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _scan.empty_state(batch, num_kv_heads, self.features, value_dim, dtype)

    def step(self, state, q, k, v):
        params = (self.projection(q.shape[-1]),)
        return _scan.step(_phi, params, state, q, k, v)

    @classmethod
    def examples(cls):
        return cls(features=24, chunk=8), cls(features=5, seed=1)
