"""Pooling over the real positions, and the heads that turn features into class scores."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from attn.nn.config import EncoderConfig
from attn.nn.keys import fold
from attn.nn.rows import of_rows


def pool(
    x: Float[Array, "*B L W"], real: Bool[Array, "*#B L"], how: str
) -> Float[Array, "*B W"] | Float[Array, "*B L W"]:
    """One vector per sequence: "cls" takes index 0; "last" the last real position, which sees all
    others under Causal; "mean" and "max" go over the real ones, in float32. 0 if there are none.
    "none" keeps every position."""
    if how == "none":
        return x
    if how == "cls":
        return x[..., 0, :]
    real = real[..., None]
    x = jnp.where(real, x.astype(jnp.float32), 0)
    if how == "mean" or x.shape[-2] == 0:
        return x.sum(-2) / jnp.maximum(real.sum(-2), 1).astype(x.dtype)
    if how == "last":
        at = lax.broadcasted_iota(jnp.int32, real.shape, real.ndim - 2)
        index = jnp.where(real, at, 0).max(-2, keepdims=True)
        return jnp.take_along_axis(x, index, axis=-2)[..., 0, :]
    # not x.max(): its gradient looks for the number again, and XLA may have recomputed it one
    # rounding off, which gives 0 / 0
    index = jnp.where(real, x, -jnp.inf).argmax(-2, keepdims=True)
    return jnp.take_along_axis(x, index, axis=-2)[..., 0, :]


def pair(a: Float[Array, "*B W"], b: Float[Array, "*B W"]) -> Float[Array, "*B 4*W"]:
    """[a, b, a b, a - b], the features of two towers that Long Range Arena's code (Tay et al. 2020,
    arXiv:2011.04006) calls "NLI" and later work uses; its own runs have [a, b] alone."""
    a, b = jnp.broadcast_arrays(a, b)
    return jnp.concatenate([a, b, a * b, a - b], axis=-1)


def hidden_width(config) -> int:
    """The width of the first hidden layer, if any: `head_width`, else `mlp_width`, else `width`."""
    return config.head_width or config.mlp_width or config.width


class Head(nnx.Module):
    """Class scores in float32, from products in the config's `dtype`: linear at each position if
    `head` is "token", else with hidden ReLU layers as in Long Range Arena: one of `head_width` for
    "classification", and for "dual" another of half of it."""

    def __init__(self, config: EncoderConfig, *, key: Array):
        hidden = hidden_width(config)
        inputs, widths = {
            "token": (config.width, []),
            "classification": (config.width, [hidden]),
            "dual": (4 * config.width, [hidden, max(hidden // 2, 1)]),
        }[config.head]
        sizes = [inputs, *widths, config.classes]
        self.pooling, self.dual = config.pooling, config.head == "dual"
        self.linears = nnx.List(
            nnx.Linear(a, b, dtype=jnp.dtype(config.dtype), rngs=nnx.Rngs(fold(key, i)))
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )

    def __call__(
        self, x: Float[Array, "*B L W"], real: Bool[Array, "*#B L"]
    ) -> Float[Array, "*A classes"]:
        """The scores, where *A is *B for "classification", *B without its last axis (two) for
        "dual", *B L for "token"."""
        x = pool(x, real, self.pooling)
        return self.score(pair(x[..., 0, :], x[..., 1, :]) if self.dual else x)

    def score(self, x: Float[Array, "*A I"]) -> Float[Array, "*A classes"]:
        """The scores of vectors that are pooled, and paired if the head is "dual"."""
        for linear in self.linears[:-1]:
            x = jax.nn.relu(of_rows(linear, x))
        return of_rows(self.linears[-1], x).astype(jnp.float32)
