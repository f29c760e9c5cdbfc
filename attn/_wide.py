"""Statistics in at least float32, and numbers that stay within its range."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def wide_dtype(dtype) -> jnp.dtype:
    """At least float32: statistics are never kept in a narrow type. NumPy's float64 is float32
    unless x64 is on."""
    held = jax.dtypes.canonicalize_dtype(dtype)
    return held if held == jnp.float64 else jnp.dtype(jnp.float32)


def float_dtype(dtype) -> jnp.dtype:
    """The dtype of a state, which holds floats. Raises TypeError for another, which would truncate
    keys to integers."""
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype: expected one of floats, as q has, got {dtype!r}") from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype: expected one of floats, as q has, got {dtype.name}")
    return dtype


def wide(x: Array) -> Array:
    """x in its `wide_dtype`."""
    x = jnp.asarray(x)
    return x.astype(wide_dtype(x.dtype))


def inverse(total: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / total for sums of weights; 0 where the sum is 0 or NaN."""
    return jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)


def finite(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x, and 0 where it is NaN or Inf."""
    return jnp.where(jnp.isfinite(x), x, 0)


def log_add(x: Float[Array, "..."], y: Float[Array, "..."] | float) -> Float[Array, "..."]:
    """log(exp(x) + exp(y)). In a scan jax 0.10 gets the second derivative of its own logaddexp, and
    so of its softplus, wrong where x = y: there its maximum and its absolute value have none."""
    above = x > y
    top, other = jnp.where(above, x, y), jnp.where(above, y, x)
    return top + jnp.log1p(jnp.exp(other - top))


def largest(x: Float[Array, "*L H"]) -> Float[Array, "*L 1"]:
    """What to divide each row by: its largest magnitude, without gradient, capped so that its
    inverse is not 0: XLA multiplies by the inverse, which for 1e38 is 0 on a CPU."""
    top = jnp.abs(x).max(-1, keepdims=True, initial=0)
    return jax.lax.stop_gradient(jnp.minimum(top, float(jnp.finfo(x.dtype).max) / 8))


def over_root(x: Float[Array, "*L H"], total) -> Float[Array, "*L H"]:
    """x / sqrt(total(x^2) + 1e-6), `total` jnp.sum or jnp.mean over the last axis; 0 stays 0."""
    # relative to the largest: in float32 the square of 1e20 is infinite, and its unit would be 0
    top = jnp.maximum(largest(x), 1)
    x = x / top
    return x * jax.lax.rsqrt(total(jnp.square(x), -1, keepdims=True) + 1e-6 / (top * top))
