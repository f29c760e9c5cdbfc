"""How far one layer carries a token, from its Jacobian, and how many layers reach everything."""

import itertools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from experiments.measure import cost
from experiments.quick import quick_options
from experiments.studies.complexity.layer import is_causal, layer


def dependencies(
    mixer, shape: cost.Shape, causal: bool, draws: int
) -> list[Bool[np.ndarray, "T T"]]:
    """For each draw of inputs, whether output i depends on token j: on anything that it brings."""
    one = layer(mixer, shape, causal)
    depends = jax.jit(lambda seed: _depends(one.call, *one.draw(seed)))
    depends = depends.lower(0).compile(quick_options())
    return [np.asarray(depends(seed)) for seed in range(draws)]


def _depends(call, tokens, learned) -> Bool[jax.Array, "T T"]:
    def outputs(tokens):
        out = call(tokens, learned)[0].reshape(tokens[0].shape[1], -1)
        # one number for each output: a sum over heads and channels, with weights of its own
        return out @ jax.random.normal(jax.random.key(1), out.shape[1:])

    jacobian = jax.jacrev(outputs)(tokens)  # each [T, 1, T, ...]
    any_of = lambda x: (x != 0).any(axis=(1, *range(3, x.ndim)))
    return jnp.stack([any_of(x) for x in jax.tree.leaves(jacobian)]).any(0)


def layers_to_reach(
    matrices: Iterable[Bool[np.ndarray, "T T"]], wanted: Bool[np.ndarray, "T T"]
) -> int | None:
    """The fewest layers after which every wanted pair is joined by a path, each layer with the next
    of `matrices`, over and over, and a residual path around it; None if T layers are not enough."""
    T = len(wanted)
    joined = np.eye(T, dtype=bool)
    for n, one in zip(range(1, T + 1), itertools.cycle(matrices)):
        joined = joined | (one.astype(np.float32) @ joined.astype(np.float32) > 0)
        if joined[wanted].all():
            return n
    return None


def reach(mixer, shape: cost.Shape, causal: bool, draws: int) -> tuple[int | None, float]:
    """(layers until each token has reached all that may see it, share of those that one reaches)"""
    T = shape.T
    wanted = np.tri(T, dtype=bool) if is_causal(mixer, causal) else np.ones((T, T), bool)
    matrices = dependencies(mixer, shape, causal, draws)
    share = float(np.mean([one[wanted].mean() for one in matrices]))
    return layers_to_reach(matrices, wanted), share
