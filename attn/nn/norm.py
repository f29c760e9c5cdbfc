"""Layer and root-mean-square normalisation, statistics in float32 whatever the input."""

import functools

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._wide import wide
from attn.norms import HeadNorm

EPSILON = 1e-6


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(var + eps) * scale + bias (Ba et al. 2016, arXiv:1607.06450). With a scale
    and bias for each of several heads, a group norm (Wu & He 2018, arXiv:1803.08494)."""

    # not nnx.LayerNorm: it raises in bfloat16 under strict promotion, and its variance is
    # E[x^2] - E[x]^2, which cancels
    def __init__(
        self, width: int | tuple[int, int], *, epsilon: float = EPSILON, start: float = 1.0
    ):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.full(width, start, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: Float[Array, "*B W"]) -> Float[Array, "*B W"]:
        y = wide(x)
        y = y - y.mean(-1, keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        scale, bias = self.scale[...].astype(y.dtype), self.bias[...].astype(y.dtype)
        y, scale, bias = aligned(y, scale, bias)
        return (y * scale + bias).astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int, *, epsilon: float = EPSILON, start: float = 1.0):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.full(width, start, jnp.float32))

    def __call__(self, x: Float[Array, "*B W"]) -> Float[Array, "*B W"]:
        y = wide(x)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        y, scale = aligned(y, self.scale[...].astype(y.dtype))
        return (y * scale).astype(x.dtype)


def head_norm(norm: HeadNorm | None, N: int, H: int) -> LayerNorm | RMSNorm | None:
    """The layer of an `attn.norms.HeadNorm`, for N heads of H numbers."""
    if norm is None:
        return None
    if norm.centred:
        return LayerNorm((N, H), epsilon=1e-5 * H, start=norm.start)
    return RMSNorm(N * H if norm.together else H, start=norm.start)


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def norm_of(config):
    """A function from a width to a norm as the `EncoderConfig` says."""
    return functools.partial(NORMS[config.norm], epsilon=config.norm_epsilon)
