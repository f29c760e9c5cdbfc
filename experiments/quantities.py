"""What an Experiment amounts to: parameters, FLOPs, decoding state, tokens; and its train step."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn import Mechanism
from attn.nn import EncoderConfig
from attn.nn.config_rules import uncounted
from attn.nn.functional import learned
from attn.nn.stack import Stack
from experiments.compiled import once
from experiments.config import Experiment
from experiments.kept import Trained
from experiments.learner import Learner, built, refusing
from experiments.measure import cost
from experiments.measure.flops import Count, count, counted
from experiments.memory import keep_freed_memory

Layer = tuple[Mechanism, cost.Shape, bool]


class Step:
    """The train step as in training: state donated, batches on the host, as many steps per call.
    The program that was `trained` with in this process need not be compiled again."""

    def __init__(self, experiment: Experiment, trained: Trained | None = None) -> None:
        self.learner = trained.learner if trained else Learner(experiment)
        self.trained, self.seed = trained, np.int32(experiment.seed)
        self.together = experiment.train.together
        batch = experiment.posed.batch(experiment.seed, 0, experiment.train.batch_size)
        self.batches = jax.tree.map(lambda x: np.stack([x] * self.together), batch)

    def arguments(self, leaves: list[Any], first: int) -> tuple[Any, ...]:
        """The arguments of the learner's `train_steps`."""
        steps = np.arange(first, first + self.together, dtype=np.int32)
        return leaves, self.batches, steps, self.seed

    @functools.cached_property
    def work(self) -> Count:
        """The operations of one step."""
        found = counted(self.program.jaxpr)
        return dataclasses.replace(found, flops=found.flops // self.together)

    @functools.cached_property
    def program(self) -> cost.Program:
        if self.trained:
            return self.trained.program
        steps = jax.jit(self.learner.train_steps, donate_argnums=0)
        build = lambda: cost.build(steps, *self.arguments(jax.tree.leaves(self.learner.shapes), 0))
        return refusing("the model", build)

    def start(self) -> None:
        state = self.learner.start() if self.trained else once(self.learner.init)
        self.leaves = jax.tree.leaves(state)
        self.number = 0

    def __call__(self, turn: int) -> None:
        self.leaves, metrics = self.program.call(*self.arguments(self.leaves, self.number))
        self.number += self.together
        jax.block_until_ready(metrics)


def in_turns(steps: dict[Any, Step], *, rounds: int, seconds: float) -> dict[Any, cost.Timing]:
    """The times of steps, each from the start of its training and with the memory of it."""
    keep_freed_memory()
    for step in steps.values():
        step.start()
    calls = max(3, rounds // max((step.together for step in steps.values()), default=1))
    found = cost.time_together(steps, rounds=calls, seconds=seconds)
    return {name: timing.of_one(steps[name].together) for name, timing in found.items()}


def params(experiment: Experiment) -> int:
    """How many numbers are learned. Raises ConfigError for what the model refuses."""
    made = lambda: nnx.split(built(experiment, experiment.seed))[1]
    return learned(refusing("the model", lambda: jax.eval_shape(made)))


def flops(experiment: Experiment) -> int:
    """FLOPs of one train step. Raises TypeError if they cannot be counted, as in a loop whose
    length depends on data, ConfigError for what the model refuses."""
    step = Step(experiment)
    arguments = step.arguments(jax.tree.leaves(step.learner.shapes), 0)
    found = refusing("the model", lambda: count(step.learner.train_steps, *arguments))
    if found.unknown:
        raise TypeError(f"the work of {', '.join(found.unknown)} cannot be counted")
    return found.flops // step.together


def milliseconds(*steps: Step) -> list[float]:
    """The time of each step, timed in turns."""
    found = in_turns(dict(enumerate(steps)), rounds=15, seconds=20)
    return [timing.median for timing in found.values()]


def tokens(experiment: Experiment) -> int:
    """How many tokens a train step reads, padding included; a decoder reads the target."""
    task = experiment.posed
    batch = task.batch(experiment.seed, 0, experiment.train.batch_size)
    target = batch.labels.size if task.head == "sequence" else 0
    return batch.lengths.size * task.train_length + target


def _encoder(experiment: Experiment) -> EncoderConfig:
    """Of a task of sequences, that of the source."""
    task = experiment.posed
    head = "token" if task.head == "sequence" else task.head
    return experiment.model.encoder(**task.sizes, head=head)


def layers(experiment: Experiment) -> list[Layer]:
    """(mechanism, shape, causal) of each layer that attends, as it trains."""
    c = dataclasses.replace(_encoder(experiment), max_length=experiment.posed.train_length)
    shape = cost.Shape(
        experiment.train.batch_size * (1 + (c.head == "dual")),
        c.positions_held,
        c.heads,
        c.kv_heads or c.heads,
        c.head_dim or c.width // c.heads,
        c.dtype,
    )
    if experiment.model.family != "transformer":
        return []
    attending = [m for m in c.mechanisms if isinstance(m, Mechanism)]
    return [(mechanism, shape, experiment.model.causal) for mechanism in attending]


def state_bytes(experiment: Experiment) -> int | None:
    """Bytes that the layers keep of one sequence, of the task's length, to decode it: keys, sums,
    the last tokens of a convolution. None if one does not decode, or not to what it is trained as,
    or if the encoder is not what decodes. Raises ConfigError for what the model refuses."""
    if experiment.posed.head == "sequence":
        return None
    return refusing("the model", lambda: _state_bytes(_encoder(experiment)))


def no_state(experiment: Experiment) -> str:
    """Why there are no `state_bytes`."""
    if experiment.posed.head == "sequence":
        return "what decodes is beside the encoder"
    return "; ".join(uncounted(_encoder(experiment))) or "it does not decode"


@functools.cache
def _state_bytes(config: EncoderConfig) -> int | None:
    if uncounted(config):
        return None
    first = jnp.zeros((1, 1, config.width), config.dtype)
    stack = lambda: Stack(config, key=jax.random.key(0))
    prefill = lambda: stack().prefill(first, max_length=config.positions_held)
    try:
        state, _ = jax.eval_shape(prefill)
    except NotImplementedError:
        return None
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
