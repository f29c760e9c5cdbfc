"""Evaluate the best checkpoint of a run.

python -m experiments.evaluate --workdir=DIR [--split=test]
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from absl import flags
from jaxtyping import Float64, Int32, PyTree

from experiments import cli
from experiments.errors import ConfigError
from experiments.stdout import tell
from experiments.tasks import Task


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """Answers to a whole split: their loss, and how many of each row are right, out of how many."""

    task: Task
    loss: float  # nats, the mean
    right: Float64[np.ndarray, "R"]
    asked: Float64[np.ndarray, "R"]
    slices: Int32[np.ndarray, "R"]  # that the rows are of

    @classmethod
    def of(
        cls, eval_step: Callable, params: PyTree, task: Task, split: str, batch_size: int
    ) -> Self:
        import jax

        # Fetched together at the end, so that the device need not wait for the host.
        batches = task.evaluation(split, batch_size)
        found = jax.device_get([{**eval_step(params, b), "slices": b.slices} for b in batches])
        every = {name: [one[name] for one in found] for name in found[0]}
        right, asked = (np.concatenate(every[x], dtype=np.float64) for x in ("right", "asked"))
        real = asked > 0  # the last batch is filled up
        loss = np.sum(every["loss"], dtype=np.float64) / asked.sum()
        slices = np.concatenate(every["slices"])
        return cls(task, float(loss), right[real], asked[real], slices[real])

    def scores(self) -> dict[str, Any]:
        """Loss and accuracy, out of how many answers, and the accuracy of each slice."""
        names = self.task.slices
        right, asked = (np.bincount(self.slices, x, len(names)) for x in (self.right, self.asked))
        return {
            "loss": self.loss,
            **self.task.measures(self.loss),
            "accuracy": float(self.right.sum() / self.asked.sum()),
            "answers": int(self.asked.sum()),
            "slices": {name: float(r / n) for name, r, n in zip(names, right, asked) if n > 0},
        }

    def by_row(self) -> dict[str, str]:
        """The right answers of each row, out of how many: one number if it is the same for all. As
        text, since JSON would give each row a line."""
        asked = self.asked[:1] if (self.asked == self.asked[0]).all() else self.asked
        words = lambda x: " ".join(f"{n:g}" for n in x)
        return {"right": words(self.right), "of": words(asked)}


def load(workdir: str | Path, *, named: str = "--workdir"):
    """(learner, parameters of the best checkpoint, its step) of a run directory; errors call it
    `named`.

    Raises ConfigError if there is none, RunDirectoryError and CheckpointError.
    """
    from experiments.checkpoint import Checkpoints
    from experiments.learner import Learner
    from experiments.rundir import read_experiment

    workdir = Path(workdir)
    learner = Learner(read_experiment(workdir, named=named))
    checkpoints = Checkpoints.of(workdir, learner.experiment)
    state, step = checkpoints.load_best(learner.shapes)
    return learner, state.params, step


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("workdir", None, "the run directory", flag_values=values)
    flags.DEFINE_enum(
        "split", "test", ["train", "validation", "test"], "what to evaluate on", flag_values=values
    )


def _run(values: flags.FlagValues) -> None:
    from experiments.compiled import Compiled

    learner, params, at = load(values.workdir)
    task, train = learner.experiment.posed, learner.experiment.train
    if task.size(values.split) is None:
        what = "expected validation or test: training rows are drawn without end"
        raise ConfigError([f"--split: {what}, got {values.split}"])
    first = next(task.evaluation(values.split, train.eval_batch_size))
    step = Compiled.of(learner.eval_step, params, first)
    found = Answers.of(step, params, task, values.split, train.eval_batch_size)
    tell(json.dumps({"split": values.split, "step": at, **found.scores()}, indent=1))


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
