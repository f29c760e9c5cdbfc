"""The mesh axes over which arrays vary inside `jax.shard_map`: a loop's carry must declare them."""

from typing import Any

import jax
from jax import lax


def varying(x: Any) -> frozenset[str]:
    """The axes that x varies over; none outside of shard_map, or where it does not track them."""
    kept = getattr(jax.typeof(x), "manual_axis_type", None)
    return frozenset(kept.varying) if kept is not None else frozenset()


def vary(tree: Any, *like: Any) -> Any:
    """The arrays, each marked as varying over all axes that any of them, or of `like`, varies
    over."""
    axes = frozenset().union(*map(varying, jax.tree.leaves((tree, like))))

    def one(x):
        missing = tuple(sorted(axes - varying(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree
