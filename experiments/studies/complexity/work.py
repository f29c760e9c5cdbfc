"""Work and steps in a row, counted in jaxprs: nothing here is run."""

import dataclasses

import jax

from attn import Causal, Mechanism
from experiments.measure import cost
from experiments.measure.flops import count
from experiments.studies.complexity.layer import layer


@dataclasses.dataclass(frozen=True)
class Work:
    """At one length: FLOPs of the forward pass, None where they cannot be counted, for the reason
    `unknown`; those of the record's formula; and the longest chain of the pass's loops."""

    flops: int | None
    unknown: tuple[str, ...]
    formula: int | None
    steps: int


def work(mixer, shape: cost.Shape, causal: bool) -> Work:
    one = layer(mixer, shape, causal)
    found = count(one.call, *jax.eval_shape(lambda: one.draw(0)))
    # no products at all: its work is elsewhere
    unknown = found.unknown or (() if found.flops else ("no matrix product",))
    sizes = (shape.T, shape.T, shape.N, shape.K, shape.H, shape.H)
    # a formula is of every pair of tokens, but where past ones alone are defined
    told = isinstance(mixer, Mechanism) and (not causal or Causal in mixer.requires)
    formula = mixer.flops(*sizes) if told else None
    return Work(None if unknown else found.flops, unknown, formula, found.steps)


def steps_by_definition(mixer, shape: cost.Shape, causal: bool) -> int:
    """The longest chain of steps in what the mixer is defined as: of a mechanism its `reference`,
    the O(T S) formula, of another mixer what it runs."""
    one = layer(mixer, shape, causal)
    return count(one.by_definition, *jax.eval_shape(lambda: one.draw(0))).steps
