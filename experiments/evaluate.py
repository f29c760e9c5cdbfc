"""Evaluate the best checkpoint of a run.

python -m experiments.evaluate --workdir=DIR [--split=test]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from jaxtyping import PyTree

from experiments import cli
from experiments.errors import ConfigError
from experiments.stdout import tell
from experiments.tasks import Task


def evaluate(
    eval_step: Callable, params: PyTree, task: Task, split: str, batch_size: int
) -> dict[str, Any]:
    """Loss and accuracy over a whole split, out of how many answers, and the accuracy of each
    slice."""
    import jax
    import numpy as np

    # Fetched together at the end, so that the device need not wait for the host.
    sums = jax.device_get([eval_step(params, b) for b in task.evaluation(split, batch_size)])
    total = {name: np.sum([s[name] for s in sums], 0, np.float64) for name in sums[0]}
    correct, weight = total["correct"], total["weight"]
    each = zip(task.slices, correct, weight, strict=True)
    loss = float(total["loss"] / weight.sum())
    return {
        "loss": loss,
        **task.measures(loss),
        "accuracy": float(correct.sum() / weight.sum()),
        "answers": int(weight.sum()),
        "slices": {name: float(c / w) for name, c, w in each if w > 0},
    }


def load(workdir: str | Path):
    """(learner, parameters of the best checkpoint, its step) of a run directory.

    Raises RunDirectoryError and CheckpointError.
    """
    from experiments.checkpoint import Checkpoints
    from experiments.learner import Learner
    from experiments.rundir import read_experiment

    workdir = Path(workdir)
    learner = Learner(read_experiment(workdir))
    checkpoints = Checkpoints.of(workdir, learner.experiment)
    step = checkpoints.best()
    return learner, checkpoints.load(step, learner.shapes).params, step


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
    result = evaluate(step, params, task, values.split, train.eval_batch_size)
    tell(json.dumps({"split": values.split, "step": at, **result}, indent=1))


if __name__ == "__main__":
    sys.exit(cli.main(_define, _run, usage=__doc__))
