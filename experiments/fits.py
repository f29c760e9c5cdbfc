"""Checks what a run needs at least against the memory it may use: it is refused by name, where an
allocation would wait for ever or the kernel would kill the process."""

import jax
from jaxtyping import PyTree

from experiments.config import Experiment
from experiments.devices import devices
from experiments.errors import ConfigError
from experiments.limits import allowed
from experiments.measure.cost import Program

POSITION = 12  # bytes: a token or one number of a vector, its label and its weight


def data(experiment: Experiment) -> None:
    """Checks one batch, and each held-out split. Raises ConfigError naming all too large."""
    train, task = experiment.train, experiment.posed
    rows = {f"train.{name}": getattr(train, name) for name in ("batch_size", "eval_batch_size")}
    rows |= {f"task.{split}": task.size(split) for split in ("validation", "test")}
    bytes_of_row = POSITION * task.length * (task.token_width or 1)
    have = allowed()
    too_large = {name: n for name, n in rows.items() if n * bytes_of_row > have}
    if too_large:
        raise ConfigError(
            [
                f"{name}: expected at most {have // bytes_of_row} rows of length {task.length}, "
                f"what this process's {have / 1e9:.0f} GB of memory can hold, got {n}"
                for name, n in too_large.items()
            ]
        )


def state(shapes: PyTree) -> None:
    """Checks the state beside its successor. Raises ConfigError."""
    need = 2 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    _check("model", "a state of at most half of it", need)


def program(name: str, compiled: Program) -> None:
    """Checks what a compiled step holds while it runs. Raises ConfigError."""
    _check(name, "a step that fits into it", compiled.peak_bytes)


def _check(name: str, expected: str, need: int) -> None:
    have = _device()
    if have is not None and need > have:
        raise ConfigError(
            [
                f"{name}: {need / 1e9:,.0f} GB are needed and the device has {have / 1e9:.0f} GB "
                f"of memory: expected {expected}; make it smaller"
            ]
        )


def _device() -> int | None:
    """Bytes of the first device's memory, None if it does not say."""
    device = devices()[0]
    if device.platform == "cpu":
        return allowed()
    return (device.memory_stats() or {}).get("bytes_limit")
