"""What each variant of a comparison costs at its own shape: attention alone and the whole step."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn import FULL, Causal
from experiments import disk, records, redact
from experiments.compiled import once
from experiments.config import Experiment
from experiments.kept import Kept
from experiments.measure import cost
from experiments.measure.flops import counted
from experiments.memory import keep_freed_memory
from experiments.quantities import Layer, Step, in_turns, layers, state_bytes
from experiments.sources import sources
from experiments.stdout import Console
from experiments.validation import to_dict

HELD = 4e9  # bytes of all steps that are timed in turns
Costs = dict[str, Any]


def costs(
    experiments: dict[str, Experiment], cache: Path, *, kept: Kept | None = None
) -> dict[str, Costs]:
    """The cost columns of each variant; from `cache` if it is of the same code and machine, and as
    it was written. The steps in `kept` are timed as they were compiled for training. What cannot be
    built, or run once, is told and left out: the others are measured."""
    found = records.environment()
    this = {
        "git": found["git"],
        "source": sources(experiments.values()),
        "versions": found["versions"],
        "settings": found["settings"],
        "hardware": found["hardware"],
        "experiments": {name: to_dict(x) for name, x in experiments.items()},
    }
    if (before := _before(cache, this)) is not None:
        return before
    keep_freed_memory()  # as in training, whatever this process did before
    told: list[str] = []
    alone = _attention(experiments, told)
    steps = _steps(experiments, kept or Kept(), told)
    measured: dict[str, Costs] = {}
    for name, experiment in experiments.items():
        found = [alone.get(layer) for layer in layers(experiment)]
        measured[name] = steps.get(name, {}) | ({} if None in found else _mean(found))
        with or_told(f"the state of {name}", told):
            measured[name]["decode_state_bytes"] = decoding(experiment)
    if told:  # and try again with the next report
        return measured
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not results
        disk.write_json(cache, records.sealed({"costs": measured}, this))
    return measured


@contextlib.contextmanager
def or_told(what: str, told: list[str]) -> Iterator[None]:
    """Tells an error inside, as one that is out of memory, and goes on after it."""
    try:
        yield
    except Exception as error:
        told.append(f"{what} could not be measured: {type(error).__name__}: {error}")
        line = redact.redacted(told[-1])
        Console().print(line, style="red", highlight=False, soft_wrap=True)


def decoding(experiment: Experiment) -> int | None:
    """Bytes of state; None beside the accuracy of a model that does not decode as it is trained."""
    return state_bytes(experiment) if experiment.model.sees_past_alone else None


def _before(cache: Path, this: dict[str, Any]) -> dict[str, Costs] | None:
    """None if it is not there, of something else, or was changed since: measure."""
    found = records.read_object(cache) or {}
    with contextlib.suppress(KeyError):
        return found["costs"] if records.is_sealed(found, this) else None
    return None


def _attention(experiments: dict[str, Experiment], told: list[str]) -> dict[Layer, Costs]:
    """Each distinct layer, all timed together."""
    distinct = dict.fromkeys(layer for e in experiments.values() for layer in layers(e))
    calls, found = {}, {}
    inputs = functools.cache(cost.Shape.inputs)  # the same arrays for all layers of a shape
    for one in distinct:
        mechanism, shape, _ = one
        with or_told(f"the attention of {mechanism} at {shape}", told):
            forward, both, takes = _alone(one, inputs(shape))
            forward(0), both(0)
            found[one] = takes
            calls |= {(one, "forward"): forward, (one, "forward_backward"): both}
    timings = cost.time_together(calls, rounds=15, seconds=20, warm=False)
    for (one, what), timing in timings.items():
        found[one] |= {f"{what}_ms": timing.median, f"{what}_ms_spread": timing.high - timing.low}
    return found


def _alone(layer: Layer, inputs: list) -> tuple[cost.Finished, cost.Finished, Costs]:
    """A layer's forward pass, that with the backward pass, and what the latter takes."""
    mechanism, shape, causal = layer
    attend = cost.attend(mechanism, Causal() if causal else FULL)
    arrays = once(functools.partial(cost.arrays, mechanism, shape))
    forward = [(*x[:3], arrays) for x in inputs]
    both = [(*x[:3], arrays, x[3]) for x in inputs]
    backward = cost.forward_backward(attend)
    programs = cost.build(attend, *forward[0]), cost.build(backward, *both[0])
    work = counted(programs[1].jaxpr)
    takes = {
        "attention_peak_bytes": programs[1].peak_bytes,
        "attention_flops": work.flops,
        "attention_flops_without": ", ".join(work.unknown),
    }
    return cost.Finished(programs[0].call, forward), cost.Finished(programs[1].call, both), takes


def _mean(alone: list[Costs]) -> Costs:
    """One layer; where layers differ, the mean over them and all that could not be counted; {} of
    none."""
    mean = {}
    for key in alone[0] if alone else ():
        values = [layer[key] for layer in alone]
        if isinstance(values[0], str):
            mean[key] = ", ".join(sorted({*values} - {""}))
        else:
            mean[key] = sum(values) / len(values)
    return mean


def _steps(experiments: dict[str, Experiment], kept: Kept, told: list[str]) -> dict[str, Costs]:
    """The train step of each, all timed together; not timed where memory may not hold them all."""
    steps, found, held = {}, {}, 0
    for name, experiment in experiments.items():
        with or_told(f"the train step of {name}", told):
            step = Step(experiment, kept.get(experiment))
            program = step.program
            found[name] = {
                "step_compile_seconds": program.compile_seconds,
                "step_peak_bytes": program.peak_bytes,
                "step_flops": step.work.flops,
                "step_flops_without": ", ".join(step.work.unknown),
            }
            steps[name] = step
            held += program.peak_bytes
    if held < HELD:
        for name, timing in in_turns(steps, rounds=15, seconds=30).items():
            spread = timing.high - timing.low
            found[name] |= {"step_ms": timing.median, "step_ms_spread": spread}
    return found
