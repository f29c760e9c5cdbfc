"""Explicit broadcasting, as `jax.numpy_rank_promotion("raise")` asks: axes of 1, never copies."""

import functools
import math
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """The arrays, NumPy's or JAX's, with axes of 1 in front of those that have fewer."""
    rank = max(x.ndim for x in arrays)
    return tuple(x.reshape((1,) * (rank - x.ndim) + x.shape) for x in arrays)


def conjunction(*seen: Bool[Any, "..."]) -> Bool[Any, "..."]:
    """The logical and of the `aligned` arrays."""
    return functools.reduce(operator.and_, aligned(*seen))


def merged_batch(x: Any, batch: tuple[int, ...], rank: int) -> Any:
    """x with the batch axes before its last `rank` merged, to size 1 if nothing varies along them,
    else to prod(batch)."""
    lead, event = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    if math.prod(lead) != 1:
        lead, x = batch, jnp.broadcast_to(x, (*batch, *event))
    return x.reshape(math.prod(lead), *event)


def part_of(x: Array, start, size: int, axis: int) -> Array:
    """`size` entries of an axis from `start`; an axis of 1, which broadcasts, is kept."""
    return x if x.shape[axis] in (1, size) else lax.dynamic_slice_in_dim(x, start, size, axis)


def with_part(x: Array, part: Array, start, axis: int) -> Array:
    """x with a `part` that `part_of` took written back."""
    if x.shape[axis] == part.shape[axis]:
        return part
    return lax.dynamic_update_slice_in_dim(x, part, start, axis)


def namespace(*arrays: Any):
    """numpy if all arrays are NumPy's, else jax.numpy."""
    return np if all(isinstance(x, np.ndarray) for x in arrays) else jnp
