"""python -m experiments.visualize --workdir=DIR [--example=0]

Draws what each layer and head of a trained run attends to in one validation example: its effective
attention matrix, rows are queries and columns keys. Writes DIR/attention.png, .svg and .html.
"""

import dataclasses
import html
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from jaxtyping import Float, Int

from experiments import cli
from experiments.errors import CheckpointError, ConfigError, LabError, RunDirectoryError
from experiments.report import plots
from experiments.report.page import facts, page, picture

LARGEST = 256  # rows of a matrix that are drawn; longer ones are averaged in squares


@dataclasses.dataclass(frozen=True)
class Seen:
    """One example and what each layer and head sees in it."""

    maps: list[Float[np.ndarray, "N L L"]]
    tokens: Int[np.ndarray, "T"] | Float[np.ndarray, "T F"]
    image: Float[np.ndarray, "height width"] | None
    about: dict[str, Any]


def look(workdir: Path, example: int) -> Seen:
    """Raises CheckpointError without a trained run, ConfigError for an example that is not there,
    LabError for a mechanism without a matrix."""
    import jax
    from flax import nnx

    from attn import FULL, Causal
    from experiments.evaluate import load

    if (workdir / "cells").is_dir():
        cells = sorted(x.name for x in (workdir / "cells").iterdir())
        hint = f", such as {workdir / 'cells' / cells[0]}" if cells else ""
        raise CheckpointError(f"{workdir} holds a comparison: name one of its runs{hint}")
    try:
        learner, params, step = load(workdir)
    except RunDirectoryError as error:
        raise CheckpointError(str(error)) from None
    task, model = learner.experiment.posed, learner.experiment.model
    if task.head == "sequence":
        raise LabError(f"for a task of sequences: python -m experiments.align --workdir={workdir}")
    if task.head == "dual":
        raise LabError("a row of this task is a pair of texts: there is no one matrix to draw")
    size = task.size("validation")
    if not 0 <= example < size:
        raise ConfigError([f"--example={example}: validation has examples 0..{size - 1}"])
    batch = task.examples("validation", np.array([example]))
    encoder, mask = nnx.merge(learner.graph, params), Causal() if model.causal else FULL
    try:
        lengths = None if learner.shape.full else batch.lengths
        maps = jax.jit(lambda x: encoder.maps(x, mask=mask, lengths=lengths))(batch.tokens)
    except NotImplementedError as error:
        raise LabError(f"there is nothing to draw: {error}") from None
    layers = model.attention if isinstance(model.attention, tuple) else (model.attention,)
    about = {
        "run": workdir,
        "attention": "; ".join(map(repr, layers)),
        "best step": step,
        "validation example": example,
        "label": np.ravel(batch.labels)[0] if batch.labels.ndim == 1 else "one for each position",
    }
    return Seen(
        [np.asarray(x[0], np.float32) for x in maps], batch.tokens[0], _image(task, batch), about
    )


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


def draw(seen: Seen) -> plots.Drawing:
    """A row for each layer, a column for each head, the input beside the first."""
    heads = max(len(layer) for layer in seen.maps)
    beside = seen.image is not None
    width, height = 1.55 * (heads + beside) + 0.3, 1.8 * len(seen.maps) + 0.2
    with plots.figure(width, height) as fig:
        axes = fig.subplots(len(seen.maps), heads + beside, squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        if beside:
            axes[0, 0].imshow(seen.image, cmap="gray")
            axes[0, 0].set_title("input", fontsize=8, pad=3)
        for n, layer in enumerate(seen.maps):
            for head, matrix in enumerate(layer):
                _matrix(axes[n, head + beside], matrix, f"layer {n + 1}, head {head + 1}")
        return plots.drawn(fig, "attention")


def _matrix(ax, matrix: Float[np.ndarray, "L L"], title: str) -> None:
    """Each from 0 to its own largest weight; low-rank variants have negative weights too."""
    top = float(np.abs(matrix).max()) or 1.0
    signed = matrix.min() < -1e-6
    scale = {"cmap": "RdBu_r", "vmin": -top} if signed else {"cmap": "viridis", "vmin": 0}
    ax.set_axis_on()
    ax.grid(False)
    ax.imshow(_averaged(matrix), vmax=top, interpolation="nearest", **scale)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=8, pad=3)
    ax.set_xlabel(f"{'±' if signed else 'max '}{top:.2g}", fontsize=7, labelpad=2)


def _averaged(matrix: Float[np.ndarray, "L L"]) -> Float[np.ndarray, "l l"]:
    size = -(-len(matrix) // LARGEST)
    if size == 1:
        return matrix
    padded = np.pad(matrix, ((0, -len(matrix) % size),) * 2, constant_values=np.nan)
    return np.nanmean(padded.reshape(len(padded) // size, size, -1, size), axis=(1, 3))


CAPTION = (
    "The effective matrix of each head: row i is how much query i takes from each key, first "
    "query on top. Colours run from 0 (dark) to the largest weight, written below; where weights "
    "can be negative, from blue through white to red."
)


def write(seen: Seen, workdir: Path, command: str) -> Path:
    """DIR/attention.html, with the picture also alone as .svg and .png."""
    drawing = draw(seen)
    drawing.save(workdir)
    tokens = " ".join(map(str, seen.tokens.tolist()))
    sections = [
        "<h1>What the heads attend to</h1>",
        facts(seen.about),
        f'<div class="figures">{picture(drawing.svg, CAPTION, wide=True)}</div>',
        f"<details><summary>tokens</summary><pre>{tokens}</pre></details>",
        f"<h2>How it was made</h2><pre>{html.escape(command)}</pre>",
    ]
    path = workdir / "attention.html"
    path.write_text(page("What the heads attend to", sections))
    return path


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "a run directory of experiments.train", flag_values=values)
    flags.DEFINE_integer("example", 0, "which validation example", flag_values=values)


def _run(values: flags.FlagValues) -> None:
    workdir = Path(values.workdir)
    command = shlex.join(["python", "-m", "experiments.visualize", *sys.argv[1:]])
    print(f"picture: {write(look(workdir, values.example), workdir, command)}")


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
