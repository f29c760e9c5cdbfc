"""What each variant of a comparison costs at its own shape: attention alone and the whole step."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn import FULL, Causal, Mechanism
from attn.nn import EncoderConfig, Mixer
from experiments import records
from experiments.config import Experiment
from experiments.learner import Learner
from experiments.measure import cost
from experiments.measure.flops import count
from experiments.validation import to_dict

HELD = 4e9  # bytes of all steps that are timed in turns
Costs = dict[str, Any]
Layer = tuple[Mechanism, cost.Shape, bool]


def costs(experiments: dict[str, Experiment], cache: Path) -> dict[str, Costs]:
    """The cost columns of each variant; from `cache` if it is of the same code and machine."""
    found = records.environment()
    this = {
        "git": found["git"],
        "versions": found["versions"],
        "hardware": found["hardware"],
        "experiments": {name: to_dict(x) for name, x in experiments.items()},
    }
    key = hashlib.sha256(json.dumps(this, sort_keys=True).encode()).hexdigest()
    if (kept := _kept(cache, key)) is not None:
        return kept
    alone = _attention(experiments)
    measured = {
        name: {
            **step,
            **_mean([alone[layer] for layer in _layers(experiments[name])]),
            "decode_state_bytes": _state_bytes(experiments[name]),
        }
        for name, step in _steps(experiments).items()
    }
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not results
        records.write_json(cache, {"key": key, "costs": measured})
    return measured


def _kept(cache: Path, key: str) -> dict[str, Costs] | None:
    try:
        kept = json.loads(cache.read_text())
        return kept["costs"] if kept["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or not ours: measure


def _encoder(experiment: Experiment) -> EncoderConfig:
    """Of a task of sequences, that of the source."""
    task = experiment.posed
    head = "token" if task.head == "sequence" else task.head
    return experiment.model.encoder(**task.sizes, head=head)


def _layers(experiment: Experiment) -> list[Layer]:
    """(mechanism, shape, causal) of each layer that attends."""
    c = _encoder(experiment)
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


def _state_bytes(experiment: Experiment) -> int | None:
    """Of all layers; None if one does not decode, or if what decodes is beside the encoder."""
    if experiment.posed.head == "sequence":
        return None
    c = _encoder(experiment)
    states = [
        cost.decode_state_bytes(mechanism, shape) for mechanism, shape, _ in _layers(experiment)
    ]
    states += [
        cost.mixer_state_bytes(m, c.width, c.dtype) for m in c.mechanisms if isinstance(m, Mixer)
    ]
    return None if None in states else sum(states)


def _attention(experiments: dict[str, Experiment]) -> dict[Layer, Costs]:
    """Each distinct layer, all timed together."""
    distinct = dict.fromkeys(layer for e in experiments.values() for layer in _layers(e))
    calls, found = {}, {}
    inputs = {shape: shape.inputs() for _, shape, _ in distinct}
    for one in distinct:
        mechanism, shape, causal = one
        attend, arrays = cost.attention(mechanism, shape, Causal() if causal else FULL)
        forward = [(*x[:3], arrays) for x in inputs[shape]]
        both = [(*x[:3], arrays, x[3]) for x in inputs[shape]]
        backward = cost.forward_backward(attend)
        programs = cost.build(attend, *forward[0]), cost.build(backward, *both[0])
        calls[one, "forward"] = cost.finished(programs[0].call, forward)
        calls[one, "forward_backward"] = cost.finished(programs[1].call, both)
        work = count(backward, *both[0])
        found[one] = {
            "attention_peak_bytes": programs[1].peak_bytes,
            "attention_flops": work.flops,
            "attention_flops_without": ", ".join(work.unknown),
        }
    for (one, what), timing in cost.time_together(calls, rounds=15, seconds=20).items():
        found[one] |= {f"{what}_ms": timing.median, f"{what}_ms_spread": timing.high - timing.low}
    return found


def _mean(layers: list[Costs]) -> Costs:
    """One layer; where layers differ, the mean over them and all that could not be counted; {} of
    none."""
    mean = {}
    for key in layers[0] if layers else ():
        values = [layer[key] for layer in layers]
        words = isinstance(values[0], str)
        mean[key] = ", ".join({*values} - {""}) if words else sum(values) / len(values)
    return mean


def _steps(experiments: dict[str, Experiment]) -> dict[str, Costs]:
    """The train step of each, all timed together; not timed where memory may not hold them all."""
    steps = {name: Step(experiment) for name, experiment in experiments.items()}
    found = {name: step.costs() for name, step in steps.items()}
    if sum(step.program.peak_bytes for step in steps.values()) < HELD:
        for step in steps.values():
            step.start()
        for name, timing in cost.time_together(steps, rounds=15, seconds=30).items():
            spread = timing.high - timing.low
            found[name] |= {"step_ms": timing.median, "step_ms_spread": spread}
    return found


class Step:
    """A train step as it is trained with: state donated, batch on the host."""

    def __init__(self, experiment: Experiment) -> None:
        self.learner = learner = Learner(experiment)
        self.batch = experiment.posed.batch(experiment.seed, 0, experiment.train.batch_size)
        state = jax.eval_shape(learner.init)
        arguments = state, self.batch, jnp.int32(0)
        self.program = cost.build(jax.jit(learner.train_step, donate_argnums=0), *arguments)
        self.work = count(learner.train_step, *arguments)

    def costs(self) -> Costs:
        return {
            "step_compile_seconds": self.program.compile_seconds,
            "step_peak_bytes": self.program.peak_bytes,
            "step_flops": self.work.flops,
            "step_flops_without": ", ".join(self.work.unknown),
        }

    def start(self) -> None:
        self.state, self.number = jax.jit(self.learner.init)(), 0

    def __call__(self, turn: int) -> None:
        self.state, metrics = self.program.call(self.state, self.batch, np.int32(self.number))
        self.number += 1
        jax.block_until_ready(metrics)
