"""Feature maps phi: phi(q) . phi(k) takes the place of exp(q . k).

A map takes x [..., H], and parameters if it has any, and returns (features [..., M], log_weight
[...] or None): phi(x) is features * exp(log_weight), split so that neither part overflows and so
that the weight, taken from the row alone, carries nothing from one position to another.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._core import isolate
from attn._settings import check_count
from attn._trigonometry import sin_cos
from attn._wide import over_root

FeatureMap = Callable[..., tuple[Float[Array, "*L M"], Float[Array, "*L"] | None]]


def elu_plus_one(x: Float[Array, "*L H"]):
    """elu(x) + 1: x + 1 above 0, exp(x) below (Katharopoulos et al. 2020, arXiv:2006.16236).

    Products below the smallest float32 become weights of 0: where all of q and of k are below -44.
    """
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x))), None


def relu(x: Float[Array, "*L H"]):
    """max(x, 0) (as in Performer-ReLU, Choromanski et al. 2020, arXiv:2009.14794). A query whose
    features are orthogonal to all keys' gets 0."""
    return jax.nn.relu(x), None


def squared_relu(x: Float[Array, "*L H"]):
    """max(x, 0)^2 (So et al. 2021, arXiv:2109.08668, as a feature map)."""
    return jnp.square(jax.nn.relu(x)), None


def softmax_features(x: Float[Array, "*L H"]):
    """softmax over the head width (the queries of Shen et al. 2018, arXiv:1812.01243)."""
    return jax.nn.softmax(x, axis=-1), None


def unit(x: Float[Array, "*L H"]):
    """x / |x|: not a feature map but the normalisation of keys. Products are cosines, of either
    sign, so that dividing by their sum is meaningless and `linear` does not.

    The square root is of |x|^2 + 1e-6: a zero vector stays 0, with a gradient.
    """
    return over_root(x, jnp.sum), None


def dpfp(x: Float[Array, "*L H"], nu: int = 1):
    """r_i r_(i + s), cyclic, of r = [relu(x), relu(-x)] for s = 1 to nu: 2 H nu sparse features
    (DPFP, Schlag et al. 2021, arXiv:2102.11174). A query orthogonal to all keys gets 0."""
    r = jax.nn.relu(jnp.concatenate([x, -x], -1))
    return jnp.concatenate([r * jnp.roll(r, -s, -1) for s in range(1, nu + 1)], -1), None


def taylor(x: Float[Array, "*L H"]):
    """1 + s + s^2 / 2 for s = q . k / sqrt(H): exp(s) to second order, at least 1/2 (Based, Arora
    et al. 2024, arXiv:2402.18668).

    x_i x_j and x_j x_i are one feature times sqrt(2): 1 + H + H (H + 1) / 2 features, whose product
    is as exact as with the paper's 1 + H + H^2.
    """
    H = x.shape[-1]
    x = x * H**-0.25
    i, j = np.triu_indices(H)
    once = jnp.asarray(np.where(i == j, math.sqrt(0.5), 1), x.dtype)
    pairs = x[..., i] * x[..., j] * once.reshape((1,) * (x.ndim - 1) + (-1,))
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, pairs], -1), None


def random_fourier(x: Float[Array, "*L H"], projection: Float[Array, "*#L M H"]):
    """sin and cos of w_m . x, over sqrt(M): for w_m drawn from N(0, I) an unbiased estimate of
    exp(-|x - y|^2 / 2), of either sign (RFA, Peng et al. 2021, arXiv:2103.02143)."""
    angle = jnp.einsum("...h,...mh->...m", x, projection.astype(x.dtype))
    return jnp.concatenate(sin_cos(angle), -1) / math.sqrt(projection.shape[-2]), None


def cos_reweighted(x: Float[Array, "*L H"], angle: Float[Array, "*#L"]):
    """relu(x) cos(angle) and relu(x) sin(angle): the products are relu(q) . relu(k) cos(angle_q -
    angle_k) (cosFormer, Qin et al. 2022, arXiv:2202.08791)."""
    r, angle = jax.nn.relu(x), angle[..., None]
    return jnp.concatenate([r * jnp.cos(angle), r * jnp.sin(angle)], -1), None


def hedgehog(x: Float[Array, "*L H"], matrix: Float[Array, "*#L H F"]):
    """exp(y) and exp(-y) for a learned y = x W (Hedgehog, Zhang et al. 2024, arXiv:2402.04347).

    Each row is divided by its own largest feature, whose logarithm is the weight. A row whose y
    overflows is NaN.
    """
    y, over = _mapped(x, matrix)
    top = jax.lax.stop_gradient(jnp.abs(y).max(-1, keepdims=True))
    return jnp.exp(jnp.concatenate([y, -y], -1) - top) + over, top[..., 0]


def hedgehog_softmax(x: Float[Array, "*L H"], matrix: Float[Array, "*#L H F"]):
    """softmax(y) and softmax(-y) for a learned y = x W, as Hedgehog's authors train it. A row whose
    y overflows is NaN."""
    y, over = _mapped(x, matrix)
    return jnp.concatenate([jax.nn.softmax(y, -1), jax.nn.softmax(-y, -1)], -1) + over, None


def _mapped(x, matrix):
    """x W, 0 in rows that overflow, and NaN there to be added later: as NaN here, their gradients
    and W's would be NaN."""
    y, over = isolate(jnp.einsum("...h,...hf->...f", x, matrix.astype(x.dtype)))
    return y, jax.lax.stop_gradient(over)[..., None]


def favor(x: Float[Array, "*L H"], projection: Float[Array, "M H"]):
    """FAVOR+: exp(w_m . x - |x|^2 / 2) / sqrt(M) for each row w_m of the projection
    (Choromanski et al. 2020, arXiv:2009.14794), an unbiased positive estimate of exp(q . k).

    Each row is divided by its own largest feature, whose logarithm is the weight: no maximum
    over positions, so nothing leaks from the future, and no epsilon.
    """
    x = jnp.clip(x, -1e18, 1e18)  # beyond, one feature has all the weight; no square overflows
    log_phi = jnp.einsum("...h,mh->...m", x, projection.astype(x.dtype))
    top = jax.lax.stop_gradient(log_phi.max(-1, keepdims=True))
    norm = jnp.sum(jnp.square(x), -1) / 2
    features = jnp.exp(log_phi - top) / math.sqrt(projection.shape[0])
    return features, top[..., 0] - norm


def draw_features(key: Array, features: int, head_dim: int) -> Float[Array, "M H"]:
    """Rows with the lengths of N(0, I), orthogonal within each block of H: FAVOR+'s lower variance.

    A pure function of a jax key: under `jit` a training loop may draw new ones at every step.
    Raises ValueError for a size that is not a positive integer.
    """
    shapes, keys = _shapes(features, head_dim), jax.random.split(key)
    draw = lambda key, shape: jax.random.normal(key, shape, jnp.float32)
    return _orthogonal(jnp, *map(draw, keys, shapes))


def orthogonal_features(seed: int, features: int, head_dim: int) -> Float[np.ndarray, "M H"]:
    """Rows as `draw_features` makes them, but constants, drawn from a `seed` by NumPy: the same on
    every platform, where XLA takes seconds to compile the draw. Raises ValueError as
    `draw_features` does, and for a seed that is not an integer >= 0."""
    check_count("seed", seed, least=0)
    return _drawn(seed, *_shapes(features, head_dim))


@functools.lru_cache(maxsize=64)
def _drawn(seed: int, *shapes: tuple[int, ...]) -> Float[np.ndarray, "M H"]:
    draw = np.random.default_rng(seed).standard_normal
    rows = _orthogonal(np, *map(draw, shapes)).astype(np.float32)
    rows.flags.writeable = False  # it is cached: every caller gets the same array
    return rows


def _shapes(features: int, head_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the blocks that are made orthogonal, and of the rows that give the lengths."""
    check_count("features", features)
    check_count("head_dim", head_dim)
    return (-(-features // head_dim), head_dim, head_dim), (features, head_dim)


def _orthogonal(
    xp, square: Float[Array | np.ndarray, "B H H"], rows: Float[Array | np.ndarray, "M H"]
):
    """The rows from drawn numbers; `xp` is jax.numpy or numpy, as these are."""
    q, r = xp.linalg.qr(square)
    # q alone is biased, as LAPACK chooses the signs of its columns, and exp(w . x) is not even
    q = xp.where(xp.diagonal(r, axis1=-2, axis2=-1)[:, None] < 0, -q, q)
    directions = xp.swapaxes(q, -2, -1).reshape(-1, rows.shape[-1])[: len(rows)]
    return directions * xp.linalg.norm(rows, axis=-1, keepdims=True)


FEATURE_MAPS: dict[str, FeatureMap] = {
    "elu": elu_plus_one,
    "relu": relu,
    "squared_relu": squared_relu,
    "softmax": softmax_features,
    "unit": unit,
    "dpfp": dpfp,
    "taylor": taylor,
}
