"""A module as a pure function of its parameters, for jax.jit, jax.grad and optax."""

from collections.abc import Callable

import jax
from flax import nnx


def functional(module: nnx.Module) -> tuple[Callable, nnx.State]:
    """(apply, params) with apply(params, ...) == module(...): `nnx.split` here, once, and
    `nnx.merge` inside whatever transform calls apply.

        apply, params = functional(encoder)
        loss = lambda params: cross_entropy(apply(params, tokens), labels)
        value, gradient = jax.jit(jax.value_and_grad(loss))(params)

    Raises TypeError for what is not a module.
    """
    _check_module(module)
    graph, params = nnx.split(module)

    def apply(params: nnx.State, *args, **kwargs):
        return nnx.merge(graph, params)(*args, **kwargs)

    return apply, params


FIXED = {"centroids", "rotations"}  # drawn, and no gradient reaches them: routing's, reformer's


def parameter_count(module: nnx.Module) -> int:
    """How many numbers are learned: those of all parameters but the `FIXED`. Raises TypeError for
    what is not a module."""
    _check_module(module)
    return learned(nnx.state(module, nnx.Param))


def _check_module(module) -> None:
    if not isinstance(module, nnx.Module):
        raise TypeError(f"module: expected an nnx.Module, got {type(module).__name__}")


def learned(params: nnx.State) -> int:
    """The `parameter_count` of parameters, or of their shapes."""
    arrays = jax.tree_util.tree_leaves_with_path(params)
    return sum(x.size for path, x in arrays if FIXED.isdisjoint(names(path)))


def names(path) -> set[str]:
    """The names on the path to a leaf of a tree."""
    return {str(getattr(part, "key", getattr(part, "name", ""))) for part in path}
