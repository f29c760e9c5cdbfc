"""What a model attends to in one example: effective matrices and the receptive field."""

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.errors import CheckpointError, LabError
from experiments.redact import redacted
from experiments.report.sight import PROBES, ROWS, Sight

READ = 64  # rows of a receptive field, and directions of the output, unless it is to be faster
LONGEST = 2048  # positions: the matrices are T x T for each head
PROBED = 2**20  # numbers in a copy of the input for each probe: 64 probes of 64 tokens, width 256
PRODUCTS = "softmax linear performer rfa cosformer based hedgehog efficient".split()
SHORT = 2**23  # numbers in the copies for all rows, below which compiling well takes longer


@dataclasses.dataclass(frozen=True)
class Seen:
    """One example and what each layer and head sees in it, without its padding."""

    maps: list[Float[np.ndarray, "N L L"] | None]  # of each layer, None where it has none
    why: str  # "" if each has some
    field: Float[np.ndarray, "R L"]
    tokens: Int[np.ndarray, "T"] | Float[np.ndarray, "T F"]
    image: Float[np.ndarray, "height width"] | None
    about: dict[str, Any]
    errors: tuple[float | None, ...] = ()  # of each layer's output to softmax's


def look(
    learner, params, split: str, example: int, *, probes: int = READ, rows: int = READ
) -> Seen:
    """One example of a split, with the receptive field from at most `probes` probes and at `rows`
    evenly spaced rows. Raises LabError if there is no single sequence to look at."""
    from flax import nnx

    from attn import FULL, Causal
    from attn.nn.inputs import prepare
    from experiments.compiled import once

    task, model = learner.experiment.posed, learner.experiment.model
    if task.head in ("sequence", "dual"):
        raise LabError(f"a row of this task (head {task.head!r}) is not one sequence of tokens")
    batch = task.examples(split, np.array([example]))
    config = nnx.merge(learner.graph, params).config
    if (length := config.positions_held) > LONGEST:
        raise LabError(f"longer than {LONGEST:,} positions")
    mask = Causal() if model.causal else FULL
    lengths = None if learner.shape.full else batch.lengths
    whys: list[str] = []
    see = lambda layer, x, **context: _see(layer, x, whys, **context)
    padding = 0 if lengths is None else task.length - int(lengths[0])  # behind all else
    shown = max(1, length - padding)
    places = np.unique(np.linspace(0, shown - 1, min(shown, rows)).astype(np.int32))
    probes = max(4, min(probes, config.width, PROBED // (length * config.width)))

    def looked(params, tokens, lengths):
        encoder = nnx.merge(learner.graph, params)
        found = encoder.look(tokens, see, mask=mask, lengths=lengths)
        one = None if lengths is None else lengths[0]
        reach = encoder.receptive_field(tokens[0], places, mask=mask, lengths=one, probes=probes)
        return found, reach, prepare(encoder.config, tokens, mask, lengths)[1]

    quickly = places.size * probes * length * config.width <= SHORT
    found, field, real = once(looked, params, batch.tokens, lengths, quickly=quickly)
    cut = lambda x: None if x is None else np.asarray(x[0, :, :shown, :shown], np.float32)
    maps, field = [cut(x) for x, _ in found], np.asarray(field, np.float32)[:, :shown]
    errors = tuple(_error(pair, np.asarray(real)) for _, pair in found)
    about = {
        "attention": "; ".join(map(repr, model.attentions)),
        f"{split} example": example,
        "label": np.ravel(batch.labels)[0] if batch.labels.ndim == 1 else "one for each position",
    }
    without = [str(n) for n, x in enumerate(maps, 1) if x is None]
    which = f"layer{'s' * (len(without) > 1)} {', '.join(without)}"
    why = f"{which}: {'; '.join(dict.fromkeys(whys))}" if without else ""
    tokens = batch.tokens[0, : task.length - padding]
    return Seen(maps, why, field, tokens, _image(task, batch), about, errors)


def _see(layer, x, whys: list[str], **context):
    """The matrices of a layer, None and a further why where it has none; and the outputs to compare
    of a mechanism that is in softmax's place."""
    from attn.nn import Attention

    try:
        maps = layer.weights(x, **context)
    except NotImplementedError as error:
        whys.append(str(error))
        maps = None
    compared = isinstance(layer, Attention) and in_place_of_softmax(layer.mechanism)
    return maps, layer.beside_softmax(x, **context) if compared else None


def in_place_of_softmax(mechanism) -> bool:
    """Whether it is softmax over fewer pairs or fewer keys, or by a product of features; gated and
    other recurrences are attention of their own."""
    from attn import MECHANISMS

    kind = type(mechanism)
    whole = kind.__module__.startswith(("attn.sparse.", "attn.compressed."))
    return whole or kind in (MECHANISMS[name] for name in PRODUCTS)


def _error(outputs, real) -> float | None:
    """|y - exact| / |exact| over the real tokens, as in the study `approximation`."""
    from experiments.studies.approximation.errors import relative

    if outputs is None:
        return None
    rows = np.broadcast_to(real, outputs[0].shape[:2])
    error = relative(*(np.asarray(x, np.float32)[rows] for x in outputs))
    return error if math.isfinite(error) else None


def trained_or_not(workdir: Path):
    """(learner, parameters, which): of the best checkpoint, or the initial ones if none is left.

    Raises ConfigError if there is nothing, RunDirectoryError for what is not a run."""
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
    """The sight of one run at the first test example: from its folder, or made now and kept there.
    What cannot be looked at says why."""
    if (kept := Sight.load(run)) is not None and kept.errors is not None:
        return kept
    try:
        learner, params, which = trained_or_not(run)
        seen = look(learner, params, "test", 0, probes=PROBES, rows=ROWS)
    except Exception as error:  # a report without it is better than none after hours of training
        why = redacted(f"not looked at: {type(error).__name__}: {error}")
        return Sight((), np.zeros((0, 0)), why)
    why = f"; no matrices of {seen.why}" if seen.why else ""
    maps = tuple(None if x is None else x.mean(0) for x in seen.maps)
    found = Sight(maps, seen.field, which + why, seen.errors)
    with contextlib.suppress(OSError):
        found.save(run)
    return found


def _image(task, batch) -> Float[np.ndarray, "height width"] | None:
    """The input as a picture, where it is one."""
    from experiments.tasks import DigitPatches, Digits, Image, Pathfinder, PathfinderPatches

    if not isinstance(task, Digits | Image | Pathfinder):
        return None
    side = math.isqrt(task.length)
    if isinstance(task, DigitPatches | PathfinderPatches):
        squares = batch.tokens[0].reshape(side, side, task.patch, task.patch)
        return squares.swapaxes(1, 2).reshape(side * task.patch, -1)
    return batch.tokens[0].reshape(side, side) - 1.0
