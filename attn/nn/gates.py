"""The per-token inputs that a mechanism asks for by `gates(...)`, projected from x."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn.nn.keys import fold

# Gates arrive activated: these names have one meaning in every mechanism, any other name gets
# the linear projection as it is.
RANGES = {
    "log_decay": jax.nn.log_sigmoid,  # a natural logarithm, at most 0
    "beta": jax.nn.sigmoid,  # in [0, 1]
}


class Gates(nnx.Module):
    """f(W x + b) for each name and shape, f from `RANGES`; float32, as a decay is raised to
    powers as high as the sequence is long."""

    def __init__(self, width: int, shapes: dict[str, tuple[int, ...]], *, key: Array):
        self.shapes = tuple(shapes.items())
        self.projections = nnx.Dict(
            {
                name: nnx.Linear(
                    width, math.prod(shape), dtype=jnp.float32, rngs=nnx.Rngs(fold(key, name))
                )
                for name, shape in self.shapes
            }
        )

    def __call__(self, x: Float[Array, "*B T W"]) -> dict[str, Float[Array, "..."]]:
        project = lambda name, shape: self.projections[name](x).reshape(*x.shape[:-1], *shape)
        same = lambda y: y
        return {name: RANGES.get(name, same)(project(name, shape)) for name, shape in self.shapes}
