"""Arrays on `Explicit` mesh axes, the default of `jax.make_mesh`: jax asks for the sharding of each
step there, and few steps of these programs have one to state. On `Auto` axes XLA finds it."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

P = ParamSpec("P")
R = TypeVar("R")


def auto_inside(attend: Callable[P, R]) -> Callable[P, R]:
    """`attend`, a function of q and others, for which `Explicit` mesh axes are `Auto`: its outputs
    lie as q does along [*B, T, N], and are whole along their width."""
    signature = inspect.signature(attend)

    @functools.wraps(attend)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, jax.Array)]
        meshes = (jax.typeof(x).sharding.mesh for x in given)
        mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
        if mesh is None:
            return attend(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))  # masks and biases hold arrays too
        arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.Array)}

        def inside(*arrays_there):
            there = dict(zip(arrays, arrays_there, strict=True))
            here = [there.get(i, x) for i, x in enumerate(leaves)]
            args, kwargs = structure.unflatten(here)
            return attend(*args, **kwargs)

        q = signature.bind(*args, **kwargs).arguments["q"]
        axes = jax.typeof(q).sharding.spec[:-1] if isinstance(q, jax.Array) else ()
        lies = NamedSharding(mesh, PartitionSpec(*axes))
        auto = jax.sharding.auto_axes(inside, axes=mesh.explicit_axes, out_sharding=lies)
        return auto(*arrays.values())

    return run
