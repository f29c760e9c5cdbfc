"""The per-token inputs that a mechanism asks for by `gates(...)`, projected from x."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn.gates import Gate, Named, StepDecay, identity
from attn.mechanism import Mechanism
from attn.nn.keys import fold
from attn.nn.rows import of_rows

# A bare shape is a linear projection. Gates arrive activated: these names have one meaning in
# every mechanism, any other name gets the projection as it is.
RANGES = {
    "log_decay": Named("log_sigmoid"),  # a natural logarithm, at most 0
    "beta": Named("sigmoid"),  # in [0, 1]
}


class Gates(nnx.Module):
    """The gates of one layer by name, each with its arrays as parameters in `projections`."""

    def __init__(self, width: int, gates: dict[str, tuple | Gate | StepDecay], *, key: Array):
        bare = lambda name, shape: Gate(shape=shape, activation=RANGES.get(name, identity))
        self.gates = tuple(
            (name, bare(name, gate) if isinstance(gate, tuple) else gate)
            for name, gate in gates.items()
        )
        parameters = lambda arrays: nnx.Dict({name: nnx.Param(x) for name, x in arrays.items()})
        self.projections = nnx.Dict(
            {name: parameters(gate.init(fold(key, name), width)) for name, gate in self.gates}
        )

    def __call__(
        self, x: Float[Array, "*B T W"], read: Callable[[str], Array] | None = None
    ) -> dict[str, Float[Array, "..."]]:
        """The gates by name, each computed from x or, if given, from `read(name)`."""
        of = lambda name: x if read is None else read(name).astype(x.dtype)
        arrays = lambda name: {key: array[...] for key, array in self.projections[name].items()}
        return {
            name: of_rows(functools.partial(gate, **arrays(name)), of(name))
            for name, gate in self.gates
        }


def output_gate(mechanism: Mechanism, width: int, N: int, H: int, *, key: Array):
    """The parameters of the output gate: one matrix, or the mechanism's own `gating`; None for no
    gate."""
    if mechanism.output_gate is None:
        return None
    if (gating := mechanism.gating(num_heads=N, head_dim=H)) is not None:
        return Gates(width, {"output_gate": gating}, key=key)
    return nnx.Param(jax.nn.initializers.lecun_normal()(key, (width, N * H), jnp.float32))
