"""What a model attends to in one example: effective matrices and the receptive field."""

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.errors import CheckpointError, LabError
from experiments.report.sight import Sight

LONGEST = 2048  # positions: the matrices are T x T for each head
PROBED = 2**20  # numbers in a copy of the input for each probe: 64 probes of 64 tokens, width 256
ROWS = 64  # of the receptive field; of a longer sequence, so many at equal distances


@dataclasses.dataclass(frozen=True)
class Seen:
    """One example and what each layer and head sees in it."""

    maps: list[Float[np.ndarray, "N L L"]]  # [] where there are none
    why: str  # there are none
    field: Float[np.ndarray, "R L"]
    tokens: Int[np.ndarray, "T"] | Float[np.ndarray, "T F"]
    image: Float[np.ndarray, "height width"] | None
    about: dict[str, Any]


def look(learner, params, split: str, example: int) -> Seen:
    """At one example of a split. Raises LabError where there is no one sequence to look at."""
    import jax
    from flax import nnx

    from attn import FULL, Causal

    task, model = learner.experiment.posed, learner.experiment.model
    if task.head in ("sequence", "dual"):
        raise LabError(f"a row of this task (head {task.head!r}) is not one sequence of tokens")
    batch = task.examples(split, np.array([example]))
    encoder = nnx.merge(learner.graph, params)
    if (length := encoder.config.positions_held) > LONGEST:
        raise LabError(f"longer than {LONGEST:,} positions")
    mask = Causal() if model.causal else FULL
    lengths = None if learner.shape.full else batch.lengths
    maps, why = [], ""
    try:
        found = jax.jit(lambda x: encoder.maps(x, mask=mask, lengths=lengths))(batch.tokens)
        maps = [np.asarray(x[0], np.float32) for x in found]
    except NotImplementedError as error:
        why = str(error)
    rows = np.unique(np.linspace(0, length - 1, min(length, ROWS)).astype(np.int32))
    one = None if lengths is None else lengths[0]
    probes = max(4, min(64, PROBED // (length * encoder.config.width)))
    reach = lambda x: encoder.receptive_field(x, rows, mask=mask, lengths=one, probes=probes)
    field = np.asarray(jax.jit(reach)(batch.tokens[0]), np.float32)
    layers = model.attention if isinstance(model.attention, tuple) else (model.attention,)
    about = {
        "attention": "; ".join(map(repr, layers)),
        f"{split} example": example,
        "label": np.ravel(batch.labels)[0] if batch.labels.ndim == 1 else "one for each position",
    }
    return Seen(maps, why, field, batch.tokens[0], _image(task, batch), about)


def trained_or_not(workdir: Path):
    """(learner, parameters, which): of the best checkpoint, or the initial ones if none is left.

    Raises RunDirectoryError for what is no run."""
    from experiments.evaluate import load
    from experiments.learner import Learner
    from experiments.rundir import read_experiment

    try:
        learner, params, step = load(workdir)
    except CheckpointError:
        learner = Learner(read_experiment(workdir))
        return learner, learner.init().params, "at initialisation: no good checkpoint is left"
    return learner, params, f"best checkpoint, step {step}"


def sight(run: Path) -> Sight:
    """Of one run, at the first test example: from its folder, or looked at now and kept there.
    What cannot be looked at says why."""
    if (kept := Sight.load(run)) is not None:
        return kept
    try:
        learner, params, which = trained_or_not(run)
        seen = look(learner, params, "test", 0)
    except Exception as error:  # a report without it is better than none after hours of training
        return Sight((), np.zeros((0, 0)), f"not looked at: {type(error).__name__}: {error}")
    why = f"; no matrices: {seen.why}" if seen.why else ""
    found = Sight(tuple(x.mean(0) for x in seen.maps), seen.field, which + why)
    with contextlib.suppress(OSError):
        found.save(run)
    return found


def _image(task, batch) -> Float[np.ndarray, "height width"] | None:
    """The input as a picture, where it is one."""
    from experiments.tasks import DigitPatches, Digits, Image, Pathfinder

    if not isinstance(task, Digits | Image | Pathfinder):
        return None
    side = math.isqrt(task.length)
    if isinstance(task, DigitPatches):
        squares = batch.tokens[0].reshape(side, side, task.patch, task.patch)
        return squares.swapaxes(1, 2).reshape(side * task.patch, -1)
    return batch.tokens[0].reshape(side, side) - 1.0
