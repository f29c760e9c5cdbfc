"""Feature maps phi: what stands in for exp(q . k) is phi(q) . phi(k).

A map takes x [..., H], and parameters if it has any, and returns (features [..., M], log_weight
[...] or None): phi(x) is features * exp(log_weight), split so that neither part overflows and so
that the weight, taken from the row alone, never tells one position about another.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

FeatureMap = Callable[..., tuple[Float[Array, "*L M"], Float[Array, "*L"] | None]]


def elu_plus_one(x: Float[Array, "*L H"]):
    """elu(x) + 1: x + 1 above 0, exp(x) below (Katharopoulos et al. 2020, arXiv:2006.16236)."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0))), None


def relu(x: Float[Array, "*L H"]):
    """max(x, 0) (as in Performer-ReLU, Choromanski et al. 2020, arXiv:2009.14794). A query whose
    features meet no key's gets 0."""
    return jax.nn.relu(x), None


def squared_relu(x: Float[Array, "*L H"]):
    """max(x, 0)^2 (So et al. 2021, arXiv:2109.08668, as a feature map)."""
    return jnp.square(jax.nn.relu(x)), None


def softmax_features(x: Float[Array, "*L H"]):
    """softmax over the head width (the queries of Shen et al. 2018, arXiv:1812.01243)."""
    return jax.nn.softmax(x, axis=-1), None


def favor(x: Float[Array, "*L H"], projection: Float[Array, "M H"]):
    """FAVOR+: exp(w_m . x - |x|^2 / 2) / sqrt(M) for each row w_m of the projection
    (Choromanski et al. 2020, arXiv:2009.14794), an unbiased positive estimate of exp(q . k).

    Each row is divided by its own largest feature, whose logarithm is the weight: no maximum
    over positions, so nothing leaks from the future, and no epsilon.
    """
    log_phi = jnp.einsum("...h,mh->...m", x, projection.astype(x.dtype))
    top = jax.lax.stop_gradient(log_phi.max(-1, keepdims=True))
    norm = jnp.sum(jnp.square(x), -1) / 2
    features = jnp.exp(log_phi - top) / math.sqrt(projection.shape[0])
    return features, top[..., 0] - norm


@functools.lru_cache(maxsize=64)
def orthogonal_features(seed: int, features: int, head_dim: int) -> Float[np.ndarray, "M H"]:
    """Rows as N(0, I) in length, orthogonal within each block of H: FAVOR+'s lower variance.

    Drawn in float32 from `jax.random.key(seed)` at trace time, hence a constant of the program.
    """
    with jax.ensure_compile_time_eval():
        turn, length = jax.random.split(jax.random.key(seed))
        blocks = -(-features // head_dim)
        gauss = jax.random.normal(turn, (blocks, head_dim, head_dim), jnp.float32)
        rows = jnp.linalg.qr(gauss)[0].mT.reshape(-1, head_dim)[:features]
        norms = jnp.linalg.norm(
            jax.random.normal(length, (features, head_dim), jnp.float32), axis=-1, keepdims=True
        )
        return np.asarray(rows * norms)


FEATURE_MAPS: dict[str, FeatureMap] = {
    "elu": elu_plus_one,
    "relu": relu,
    "squared_relu": squared_relu,
    "softmax": softmax_features,
}
