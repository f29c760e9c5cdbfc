"""python -m experiments.visualize --workdir=DIR [--example=0]

Draws what each layer and head of a trained run attends to in one validation example: its effective
attention matrix, rows are queries and columns keys, and the receptive field of the whole encoder.
Writes DIR/attention.png, .svg and .html.
"""

import dataclasses
import html
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments import cli, redact, seen
from experiments.disk import write_text
from experiments.errors import ConfigError, LabError
from experiments.evaluate import load
from experiments.report import plots
from experiments.report.page import facts, page, picture
from experiments.report.sight import AVERAGED, matrix
from experiments.seen import Seen
from experiments.stdout import tell


def look(workdir: Path, example: int) -> Seen:
    """What the model sees in one example. Raises what `load` does, ConfigError for a missing
    example or a task whose rows are not one sequence of tokens."""
    learner, params, step = load(workdir)
    task = learner.experiment.posed
    if task.head == "sequence":
        other = redact.command("experiments.align", [f"--workdir={workdir}"])
        raise ConfigError([f"--workdir: for a task of sequences: {other}"])
    size = task.size("validation")
    if not 0 <= example < size:
        raise ConfigError([f"--example={example}: validation has examples 0..{size - 1}"])
    try:
        found = seen.look(learner, params, "validation", example)
    except LabError as error:
        raise ConfigError([f"--workdir: {error}"]) from None
    about = {"run": workdir, "best step": step, **found.about}
    return dataclasses.replace(found, about=about)


def draw(found: Seen) -> plots.Drawing:
    """The picture: a row per layer that has matrices, a column per head, the input beside the first
    row, and last the receptive field."""
    maps = [(n, layer) for n, layer in enumerate(found.maps, 1) if layer is not None]
    heads = max((len(layer) for _, layer in maps), default=0)
    rows, first = max(len(maps), 1), found.image is not None
    with plots.figure(1.55 * (first + heads + 1) + 0.3, 1.8 * rows + 0.2) as fig:
        axes = fig.subplots(rows, first + heads + 1, squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        if found.image is not None:
            axes[0, 0].imshow(found.image, cmap="gray")
            axes[0, 0].set_title("input", fontsize=8, pad=3)
        for row, (n, layer) in zip(axes, maps):
            for head, values in enumerate(layer):
                matrix(row[first + head], values, f"layer {n}, head {head + 1}")
        matrix(axes[0, -1], found.field, "receptive field")
        return plots.drawn(fig, "attention")


CAPTION = (
    "The effective matrix of each head: row i is how much query i takes from each key, first "
    "query on top. Colours run from 0 (dark) to the largest weight, written below; where weights "
    f"can be negative, from blue through white to red. {AVERAGED} Receptive field: how much the "
    "encoder's output at i depends on its input at j, the norm of the Jacobian's block (i, j), of "
    f"at most {seen.READ} i at equal distances, estimated from random directions of the output "
    f"where the width is above {seen.READ}, or the sequence long."
)


def write(found: Seen, workdir: Path, command: str) -> Path:
    """DIR/attention.html, with the picture also alone as .svg and .png."""
    drawing = draw(found)
    drawing.save(workdir)
    tokens = " ".join(map(str, found.tokens.tolist()))
    sections = [
        "<h1>What the heads attend to</h1>",
        facts(found.about | ({"no matrices of": found.why} if found.why else {})),
        f'<div class="figures">{picture(drawing.svg, CAPTION, wide=True)}</div>',
        f"<details><summary>tokens</summary><pre>{tokens}</pre></details>",
        f"<h2>How it was made</h2><pre>{html.escape(command)}</pre>",
    ]
    path = workdir / "attention.html"
    write_text(path, page("What the heads attend to", sections))
    return path


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "a run directory of experiments.train", flag_values=values)
    flags.DEFINE_integer("example", 0, "which validation example", flag_values=values)


def _run(values: flags.FlagValues) -> None:
    workdir = Path(values.workdir)
    command = redact.started("experiments.visualize")
    tell(f"picture: {write(look(workdir, values.example), workdir, command)}")


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
