"""python -m experiments.align --workdir=DIR [--example=0]

Draws which characters of the source each written character attends to, in one validation example of
a trained run of a sequence task: rows are what is written (by greedy decoding), columns the source.
Writes DIR/alignment.png and .svg.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags
from jaxtyping import Float

from experiments import cli, redact
from experiments.errors import ConfigError
from experiments.report import plots
from experiments.stdout import tell


@dataclasses.dataclass(frozen=True)
class Alignment:
    """One example: for each picture's title, the weights of each written token over the source."""

    maps: dict[str, Float[np.ndarray, "T S"]]
    source: list[str]
    written: list[str]
    wanted: list[str]


def look(workdir: Path, example: int) -> Alignment:
    """The alignment of one example. Raises what `load` does, ConfigError for an example that does
    not exist or a run that cannot be drawn, as of a task that is not one of sequences."""
    from flax import nnx

    from experiments.evaluate import load
    from experiments.families import BOS, source_mask
    from experiments.tasks.sequence import END, Translation

    learner, params, _ = load(workdir)
    task = learner.experiment.posed
    if task.head != "sequence":
        other = redact.command("experiments.visualize", [f"--workdir={workdir}"])
        # no "'token': ", which would read as a secret
        raise ConfigError([f"--workdir: its task has head {task.head!r}; draw it with {other}"])
    if not isinstance(task, Translation):  # one of the user's own
        what = "expected a Translation (experiments.tasks.sequence), which names its characters"
        raise ConfigError([f"--workdir: its task: {what}, got {type(task).__name__}"])
    size = task.size("validation")
    if not 0 <= example < size:
        raise ConfigError([f"--example={example}: validation has examples 0..{size - 1}"])
    batch = task.examples("validation", np.array([example]))
    model, S = nnx.merge(learner.graph, params), int(batch.lengths[0])
    tokens = batch.tokens[:, :S]
    how = source_mask(learner.experiment.model)
    try:
        written = np.asarray(model.greedy(tokens, task.target_length, **how))[0]
    except NotImplementedError as error:
        raise ConfigError([f"--workdir: nothing can be written: {error}"]) from None
    written = written[: np.append(written, END).tolist().index(END) + 1]
    given = np.append(BOS, written[:-1])[None].astype(np.int32)
    wanted = batch.labels[0][: batch.labels[0].tolist().index(END) + 1]
    return Alignment(
        _maps(model, tokens, given, how),
        task.characters(tokens[0].tolist(), target=False),
        task.characters(written.tolist(), target=True),
        task.characters(wanted.tolist(), target=True),
    )


def _maps(model, tokens, given, how) -> dict[str, Float[np.ndarray, "T S"]]:
    import jax

    from attn.nn import Seq2Seq

    if not isinstance(model, Seq2Seq):
        return {"alignment": np.asarray(jax.jit(model.alignments)(tokens, given)[0])}
    try:
        layers = jax.jit(lambda s, t: model.maps(s, t, **how))(tokens, given)
    except NotImplementedError as error:
        raise ConfigError([f"--workdir: there is nothing to draw: {error}"]) from None
    return {
        f"layer {n}, head {h}": np.asarray(matrix, np.float32)
        for n, layer in enumerate(layers, 1)
        for h, matrix in enumerate(layer[0], 1)
    }


def draw(seen: Alignment) -> plots.Drawing:
    """The pictures side by side, at most four in a row."""
    columns = min(4, len(seen.maps))
    rows = -(-len(seen.maps) // columns)
    T, S = len(seen.written), len(seen.source)
    with plots.figure(columns * (0.16 * S + 0.6), rows * (0.16 * T + 0.8)) as fig:
        axes = fig.subplots(rows, columns, squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, (title, matrix) in zip(axes.flat, seen.maps.items()):
            ax.set_axis_on()
            ax.grid(False)
            ax.imshow(matrix, cmap="viridis", vmin=0, interpolation="nearest")
            ax.set_xticks(range(S), seen.source, fontsize=7)
            ax.set_yticks(range(T), seen.written, fontsize=7)
            ax.tick_params(length=0, pad=2)
            ax.set_title(title, fontsize=8, pad=3)
        return plots.drawn(fig, "alignment")


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "a run directory of experiments.train", flag_values=values)
    flags.DEFINE_integer("example", 0, "which validation example", flag_values=values)


def _run(values: flags.FlagValues) -> None:
    workdir = Path(values.workdir)
    seen = look(workdir, values.example)
    draw(seen).save(workdir)
    right = "right" if seen.written == seen.wanted else f"wanted {' '.join(seen.wanted)}"
    tell(f"source:  {' '.join(seen.source)}\nwritten: {' '.join(seen.written)} ({right})")
    tell(f"picture: {workdir / 'alignment.png'}")


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
