"""Running sums of log decays whose differences stay accurate: how far a token has decayed.

The error of a difference of two plain sums grows with the sums, not with it, and a logarithm of
-inf makes it NaN. So a sum is kept in three parts: the sum, what rounding left out of it, and a
count.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LEAST = -1e5  # beside logits of 1e4


@jax.jit  # for calls outside of jit
def running(x: Float[Array, "*B S N"]) -> Float[Array, "*B S N 3"]:
    """Sums of logarithms up to each token: the sum, what rounding left out of it, and how many
    summands were NaN or above 0, which are left out. One below -1e5, -inf too, counts as -1e5:
    exp(-1e5) is 0."""
    x, bad = _counted(x)
    total = jnp.cumsum(x, -2)
    plain = lax.stop_gradient(x)
    high, low = lax.associative_scan(_add_exactly, (plain, jnp.zeros_like(plain)), axis=-2)
    rest = (high - lax.stop_gradient(total)) + low
    return jnp.stack([total, rest, jnp.cumsum(bad, -2)], -1)


def followed(sums: Float[Array, "*B 1 N 3"], x: Float[Array, "*B 1 N"]) -> Float[Array, "*B 1 N 3"]:
    """The running sums at one more token."""
    x, bad = _counted(x.astype(sums.dtype))
    total, rest = _add_exactly((sums[..., 0], sums[..., 1]), (x, jnp.zeros_like(x)))
    return jnp.stack([total, rest, sums[..., 2] + bad], -1)


def _counted(x):
    """The logarithms that count, 0 in place of others, and 1 for each of those."""
    # above 0 sums would not fall, and `between` could not tell which came first
    bad = jnp.isnan(x) | (x > 0)
    x = jnp.where(bad, 0, x)
    return jnp.where(x < LEAST, LEAST, x), bad.astype(x.dtype)


def _add_exactly(x, y):
    """(high, low) + (high, low): the sum of two numbers and its rounding error (Knuth)."""
    high = x[0] + y[0]
    second = high - x[0]
    error = (x[0] - (high - second)) + (y[0] - second)
    low = error + (x[1] + y[1])
    total = high + low
    return total, low - (total - high)


def between(a: Float[Array, "3 ..."], c: Float[Array, "3 ..."]) -> Float[Array, "..."]:
    """-|a - c| of running sums; NaN if what was left out lies between."""
    d = (a[0] - c[0]) + (a[1] - c[1])
    d = jnp.where(a[2] == c[2], d, jnp.nan)
    # not -abs(d): its derivative at an unused NaN is 0 * NaN
    return jnp.where(d > 0, -d, d)
