"""A value that several loops read, computed once."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def once(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x, computed once: XLA on a CPU recomputes a product or a select in each elementwise loop that
    reads it, but not a quotient whose divisor it cannot tell is constant along a row; it drops
    `lax.optimization_barrier`."""
    return x / jnp.where(x == x, 1.0, 2.0)
