"""The state before the first step: drawn, or with the parameters of another run."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.checkpoint import flatten
from experiments.errors import ConfigError
from experiments.evaluate import load
from experiments.learner import Learner, State

# what depends on the question that was asked, and not on the inputs that were read
OF_THE_QUESTION = ("head.", "embedding.cls")


def start(learner: Learner, *, tell: Callable[[str], None] = print) -> State:
    """`learner.init()`; with `init_from`, every parameter is the best one of that run, but for the
    head and CLS where they differ. Raises ConfigError if others differ, RunDirectoryError and
    CheckpointError if that run has none to give."""
    state = jax.jit(learner.init)()
    source = learner.experiment.init_from
    if not source:
        return state
    _, params, step = load(source)
    given, own = flatten(params), flatten(state.params)
    kind = lambda x: None if x is None else (x.shape, x.dtype)
    differ = [name for name in {**given, **own} if kind(given.get(name)) != kind(own.get(name))]
    if wrong := [name for name in differ if not name.startswith(OF_THE_QUESTION)]:
        show = lambda x: "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
        lines = [f"{n}: {show(given.get(n))} there, {show(own.get(n))} here" for n in wrong]
        raise ConfigError(lines, f"init_from: {source} is another model's run")
    kept = [name for name in own if name in differ]
    said = f"; {', '.join(kept)} drawn afresh" if kept else ""
    tell(f"starting from step {step} of {source}{said}")
    # copies: a state's buffers are donated to the first step
    leaves = [own[n] if n in differ else jnp.array(given[n]) for n in own]
    params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
    return dataclasses.replace(state, params=params)
