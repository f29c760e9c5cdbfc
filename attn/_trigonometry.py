"""Sine and cosine at the cost of an exponential: XLA's on a CPU take 20 times as long."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# pi / 2 in parts so short that n times the first is exact for n < 2^16 (Cody and Waite 1980)
PARTS = 1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8
# of s(r) = r + r^3 (...) and c(r) = 1 - r^2 / 2 + r^4 (...) on |r| <= pi / 4 (Cephes, Moshier 1992)
SINE = -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1
COSINE = 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2


@jax.custom_jvp
def sin_cos(x: Float[Array, "*L"]) -> tuple[Float[Array, "*L"], Float[Array, "*L"]]:
    """(sin x, cos x): float32 within 2e-7 up to |x| = 10^4, and beyond as if x were off by some of
    its last bits; wider dtypes by XLA's own."""
    if x.dtype != jnp.float32:
        return jnp.sin(x), jnp.cos(x)
    n = jnp.round(x * (2 / math.pi))
    r = ((x - n * PARTS[0]) - n * PARTS[1]) - n * PARTS[2]
    r = jnp.clip(r, -1, 1)  # what is left of 1e30 may be anything
    z = r * r
    s = r + r * z * _polynomial(SINE, z)
    c = 1 - z / 2 + z * z * _polynomial(COSINE, z)
    quarter = n - 4 * jnp.floor(n / 4)
    crossed = (quarter == 1) | (quarter == 3)
    sign = lambda negative: jnp.where(negative, -1.0, 1.0).astype(x.dtype)
    sine = jnp.where(crossed, c, s) * sign(quarter >= 2)
    cosine = jnp.where(crossed, s, c) * sign((quarter == 1) | (quarter == 2))
    return sine, cosine


@sin_cos.defjvp
def _derivative(primals, tangents):
    (sine, cosine), (dx,) = sin_cos(*primals), tangents
    return (sine, cosine), (cosine * dx, -sine * dx)


def _polynomial(coefficients, z):
    return functools.reduce(lambda total, c: total * z + c, coefficients)
