"""Checks of integers given to JAX, which silently keeps the last 32 bits of larger ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from attn._arrays import is_array
from attn._settings import is_integer


def check_range(name: str, x, least: int, most: int) -> None:
    """Raise ValueError for integers outside `least` to `most`. Traced arrays, and those on other
    machines, have unknown values and pass."""
    if isinstance(x, jax.core.Tracer) or not getattr(x, "is_fully_addressable", True):
        return
    numbers = np.asarray(x)
    outside = numbers[(numbers < least) | (numbers > most)]
    if outside.size:
        raise ValueError(f"{name}: expected integers from {least} to {most}, got {outside[0]}")


def check_integers(name: str, x) -> None:
    """Raise TypeError unless x is an array of integers."""
    if not (is_array(x) and jnp.issubdtype(x.dtype, jnp.integer)):
        got = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name}: expected an array of integers, got {got}")


def check_lengths(lengths) -> None:
    """Raise ValueError for lengths below 0, or that 32 bits do not hold."""
    check_range("lengths", lengths, 0, np.iinfo(np.int32).max)


def check_fits(name: str, x, dtype=np.int32) -> None:
    """Raise ValueError for integers that `dtype` does not hold."""
    x = x if hasattr(x, "dtype") else np.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer) and not np.can_cast(x.dtype, dtype):
        bounds = np.iinfo(dtype)
        check_range(name, x, bounds.min, bounds.max)


def apart(i: Int[Any, "..."], j: Int[Any, "..."]) -> Int[Any, "..."]:
    """i - j in int32: unsigned and short integers would wrap around. Raises TypeError unless both
    are integers or arrays of them, ValueError for integers that 32 bits do not hold."""
    for name, x in (("i", i), ("j", j)):
        if not is_integer(x):
            check_integers(name, x)
        check_fits(name, x)
    return jnp.asarray(i, jnp.int32) - jnp.asarray(j, jnp.int32)
