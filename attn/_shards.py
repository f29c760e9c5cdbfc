"""Rows of a batch that may lie on several devices: XLA would bring all of them to each device for a
loop that takes some rows in turn, so such loops run side by side, one for each share."""

import math
from collections.abc import Callable
from typing import Any

import jax

from attn._platform import device_count


def shares(B: int) -> int:
    """Into how many equal parts of consecutive rows a batch may be divided among devices. Inside
    `jax.shard_map` it has been."""
    return 1 if jax.sharding.get_abstract_mesh().manual_axes else math.gcd(B, device_count())


def undivided() -> bool:
    """Whether XLA will divide no array among devices: there is one, or `jax.shard_map` has divided
    them along all axes of its mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    divided = mesh.manual_axes
    return set(divided) == set(mesh.axis_names) if divided else device_count() == 1


def side_by_side(function: Callable[..., Any], count: int, have_rows: Any) -> Callable[..., Any]:
    """The function of the arguments, run for each of `count` parts of their rows; `have_rows` says
    which of their leaves have rows, the others are the same for all parts."""
    axes = tuple(0 if has else None for has in jax.tree.leaves(have_rows))

    def whole(*arguments):
        leaves, structure = jax.tree.flatten(arguments)
        cut = lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:])
        parts = [x if axis is None else cut(x) for x, axis in zip(leaves, axes, strict=True)]
        one = lambda *leaves: function(*structure.unflatten(leaves))
        made = jax.vmap(one, in_axes=axes)(*parts)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), made)

    return whole
