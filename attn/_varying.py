"""The mesh axes over which arrays differ inside `jax.shard_map`: a loop's carry must say them."""

from typing import Any

import jax
from jax import lax


def varying(x: Any) -> frozenset[str]:
    """The axes that x varies over; none outside of shard_map, or where it keeps no track."""
    kept = getattr(jax.typeof(x), "manual_axis_type", None)
    return frozenset(kept.varying) if kept is not None else frozenset()


def vary(tree: Any, *like: Any) -> Any:
    """The same arrays, each said to vary over what any of them, or of `like`, varies over."""
    axes = frozenset().union(*map(varying, jax.tree.leaves((tree, like))))

    def one(x):
        missing = tuple(sorted(axes - varying(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree
