"""Dropout as a function of a key (Srivastava et al. 2014): no state, no mode to set."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropout(x: Float[Array, "..."], rate: float, key: Array | None) -> Float[Array, "..."]:
    """x / (1 - rate) with probability 1 - rate, else 0, drawn for each number; x if key is None."""
    if key is None or rate == 0:
        return x
    share = 1 - float(rate)  # a number of NumPy would widen x
    return jnp.where(jax.random.bernoulli(key, share, x.shape), x / share, 0)
