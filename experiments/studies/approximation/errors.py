"""How far a variant's output and gradients are from those of exact attention."""

import functools

import jax
import jax.numpy as jnp

from attn import FULL, Mechanism, Softmax
from experiments.studies.approximation.inputs import Inputs

NAMES = ("output", "q", "k", "v")  # the output, and the gradients of these


@functools.partial(jax.jit, static_argnames=("mechanism", "mask"))
def results(mechanism: Mechanism, x: Inputs, arrays: dict, mask=FULL):
    """The output, and the gradients of q, k and v of its product with the cotangent."""
    attend = lambda q, k, v: mechanism(q, k, v, mask=mask, **arrays)
    out, pull = jax.vjp(attend, x.q, x.k, x.v)
    return out, *pull(x.cotangent)


def exact(x: Inputs, mask=FULL):
    """`results` of softmax attention."""
    return results(Softmax(), x, {}, mask)


def relative(a, b) -> float:
    """|a - b| / |b| in Frobenius' norm."""
    return float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel()))


def errors(mechanism: Mechanism, x: Inputs, arrays: dict, truth, mask=FULL) -> dict[str, float]:
    """The relative error of each of NAMES; `truth` is what `exact` gave for the same inputs."""
    found = results(mechanism, x, arrays, mask)
    return {name: relative(a, b) for name, a, b in zip(NAMES, found, truth)}
