"""Performer (Choromanski et al. 2020, arXiv:2009.14794): FAVOR+, O(T M (H + D)) time."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._settings import check_count
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import favor, orthogonal_features
from attn.masks import FULL, Mask


def performer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    projection: Float[Array, "M H"],
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """Softmax attention with unbiased estimates of its numerator and denominator by M features.

    phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(M) with x' = x / H^(1/4); `projection` W has rows like
    N(0, I): by `orthogonal_features` from a seed or `draw_features` from a key. Strictly causal
    under `Causal`: keys are stabilised by a running maximum over each query's own past. O(T M (H +
    D)) time, O(T) memory. Honours `Causal`, `Padding` and `Segments` joined by `&`, else
    NotImplementedError. Raises ValueError for a projection of the wrong width.
    """
    shape = jnp.shape(projection)
    if len(shape) != 2 or shape[0] == 0:
        raise ValueError(f"projection: expected [features, head width], got {list(shape)}")
    performer = Performer(features=shape[0], chunk=chunk)
    return performer(q, k, v, mask=mask, bias=bias, projection=projection)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performer(Linearized):
    """Positive orthogonal random features for the softmax kernel (Choromanski et al. 2020).

    The features are those of `seed`; a training loop that redraws them, as the paper advises,
    passes each call `projection=draw_features(key, features, head_dim)`.
    """

    crosses: ClassVar = True
    normalised: ClassVar = True
    features: int = 256
    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        check_count("features", self.features)
        check_count("seed", self.seed, least=0)

    def projection(self, head_dim: int) -> Float[Array, "M H"]:
        """The features drawn by `seed`."""
        return jnp.asarray(orthogonal_features(self.seed, self.features, head_dim))

    def _optional(self, head_dim):
        return {"projection": (self.features, head_dim)}

    def terms(self, q, k, *, projection: Float[Array, "M H"] | None = None):
        H = q.shape[-1]
        projection = self.projection(H) if projection is None else projection
        # exp(q . k / sqrt(H)) is the kernel of x / H^(1/4); a query's weight cancels
        phi = lambda x: favor(x * H**-0.25, projection)
        (fq, _), (fk, log_weight) = phi(q), phi(k)
        return Terms(fq, fk, log_weight=log_weight)

    def map_flops(self, head_dim):
        return 2 * self.features * head_dim

    @classmethod
    def examples(cls):
        return cls(features=24, chunk=8), cls(features=5, seed=1)
