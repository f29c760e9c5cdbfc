"""Dropout as a function of a key (Srivastava et al. 2014): no state, no mode to set."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._settings import is_number
from attn.nn.keys import check_key


def dropout(x: Float[Array, "..."], rate: float, key: Array | None) -> Float[Array, "..."]:
    """x / (1 - rate) with probability 1 - rate, else 0, drawn for each number; x if key is None.

    Raises ValueError for a rate outside [0, 1), TypeError for a seed in place of a key.
    """
    if not is_number(rate) or not 0 <= rate < 1:
        raise ValueError(f"rate: expected a number in [0, 1), got {rate!r}")
    if key is None or rate == 0:
        return x
    check_key(key)
    share = 1 - float(rate)  # a number of NumPy would widen x
    return jnp.where(jax.random.bernoulli(key, share, x.shape), x / share, 0)
