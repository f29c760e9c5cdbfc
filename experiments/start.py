"""The state before the first step: drawn, or with the parameters of another run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array

from experiments.checkpoint import flatten
from experiments.errors import ConfigError
from experiments.evaluate import load
from experiments.learner import Learner, State
from experiments.rundir import RESULT
from experiments.validation import differences, to_dict

# what depends on the question that was asked, and not on the inputs that were read
OF_THE_QUESTION = ("head.", "embedding.cls")
# what splits the same parameters in another way
OF_THE_SHAPE = ("model.heads", "model.kv_heads", "model.head_dim", "model.family")
POSITIONS, CLS = "embedding.positions.value", "embedding.cls.value"


def start(learner: Learner, *, tell: Callable[[str], None] = print) -> State:
    """`learner.init()`; with `init_from`, every parameter is that of the run's best checkpoint,
    except for the head and CLS if they differ: CLS takes a learned position of its own in front.
    Tells which other settings of task and model differ. Raises ConfigError if other parameters or
    the heads do, RunDirectoryError and CheckpointError if that run has none to give."""
    source = learner.experiment.init_from
    if not source:
        return learner.start()
    # before anything is compiled: it may not be there
    other, params, step = load(source, named="init_from")
    state = learner.start()
    settings = _settings(other, learner)
    own, given = flatten(state.params), _placed(flatten(params), flatten(state.params))
    kind = lambda x: None if x is None else (x.shape, x.dtype)
    differ = [name for name in {**given, **own} if kind(given.get(name)) != kind(own.get(name))]
    show = lambda x: "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
    wrong = [line for line in settings if line.startswith(OF_THE_SHAPE)] + [
        f"{name}: {show(given.get(name))} there, {show(own.get(name))} here"
        for name in differ
        if not name.startswith(OF_THE_QUESTION)
    ]
    if wrong:
        raise ConfigError(wrong, f"init_from: {source} is another model's run")
    fresh = [name for name in own if name in differ]
    ended = "" if (Path(source) / RESULT).exists() else ", which has not come to its end"
    tell(f"starting from step {step} of {source}{ended}")
    for line in [*settings, *(f"{name}: drawn afresh" for name in fresh)]:
        tell(f"  {line}")
    # copies: a state's buffers are donated to the first step
    leaves = [own[n] if n in differ else jnp.array(given[n]) for n in own]
    params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
    return dataclasses.replace(state, params=params)


def _settings(other: Learner, learner: Learner) -> list[str]:
    """How the task and the model differ."""
    there, here = to_dict(other.experiment), to_dict(learner.experiment)
    return differences(*({k: d[k] for k in ("task", "model")} for d in (there, here)))


def _placed(given: dict[str, Array], own: dict[str, Array]) -> dict[str, Array]:
    """Learned positions moved by one where CLS was put in front of the tokens."""
    if POSITIONS not in given or POSITIONS not in own or CLS in given or CLS not in own:
        return given
    return {**given, POSITIONS: jnp.concatenate([own[POSITIONS][:1], given[POSITIONS]])}
