"""Kill a tiny run at random moments, go on until it is done, compare it with one never killed.

python -m experiments.soak [--kills=50] [--seed=0]

Its processes are forked from one that has imported JAX but not started it, and compile once.
"""

import dataclasses
import functools
import hashlib
import math
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import cli, disk, loop, manifest, records, train
from experiments.checkpoint import Checkpoints, flatten
from experiments.config import Experiment
from experiments.errors import ConfigError, LabError
from experiments.learner import Learner
from experiments.rundir import read_json
from experiments.stdout import tell
from experiments.validation import from_dict

EXPERIMENT = {
    "task": {
        "name": "recall",
        "vocab_size": 32,
        "length": 12,
        "pairs": [1, 2],
        "validation": 20,
        "test": 20,
    },
    "model": {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "causal": True, "dropout": 0.1},
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1},
    "train": {
        "steps": 24,
        "batch_size": 8,
        "eval_batch_size": 16,
        "eval_every": 4,
        "save_every": 5,
    },
}
STARTING, TRAINING, SAVING = range(3)
AT_THE_START = 0.2  # share of kills while JAX starts, or a checkpoint is read
HANGS = 600  # seconds after which a process is taken for hung


@dataclasses.dataclass(frozen=True)
class Worker:
    """Processes that train in one directory, one by one; `phase` is what the last one did."""

    workdir: Path
    cache: Path
    phase: mmap.mmap = dataclasses.field(default_factory=lambda: mmap.mmap(-1, 1))

    def fork(self) -> int:
        self.phase[0] = STARTING
        if pid := os.fork():
            return pid
        try:
            self._work(from_dict(EXPERIMENT))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _work(self, experiment: Experiment) -> None:
        jax.config.update("jax_compilation_cache_dir", str(self.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        loop.Session.run = self._during(TRAINING, loop.Session.run)
        Checkpoints.save = self._during(SAVING, Checkpoints.save)
        train.run(experiment, self.workdir, progress=False)
        disk.write_json(self.workdir / "outcome.json", _outcome(experiment, self.workdir))

    def _during(self, phase: int, function: Callable) -> Callable:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            before, self.phase[0] = self.phase[0], phase
            result = function(*args, **kwargs)
            self.phase[0] = before
            return result

        return inside


def _outcome(experiment: Experiment, workdir: Path) -> dict[str, Any]:
    """What two runs must have in common: every bit of the last state, and all but times."""
    like = Learner(experiment).shapes
    state = Checkpoints.of(workdir, experiment).load(experiment.train.steps, like)
    digest = lambda x: hashlib.sha256(np.asarray(x).tobytes()).hexdigest()
    return {
        "state": {name: digest(x) for name, x in flatten(state).items()},
        "metrics": [records.timeless(row) for row in records.read_metrics(workdir / loop.METRICS)],
        "result": records.timeless(read_json(workdir / loop.RESULT)),
    }


def _live(
    worker: Worker, *, kill_after: float = math.inf, of_training: bool = True
) -> tuple[bool, float, float]:
    """Whether it was killed, so many seconds after it began or began to train, and its seconds
    before and in training. Raises LabError if it failed or hung."""
    began, trained, pid = time.monotonic(), None, worker.fork()
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        now = time.monotonic()
        if trained is None and worker.phase[0] != STARTING:
            trained = now
        since = trained if of_training else began
        if now > began + HANGS or (since is not None and now > since + kill_after):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    ended, (_, status) = time.monotonic(), os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) > 0 or ended > began + HANGS:
        raise LabError(f"a process failed or hung, see above and {worker.workdir}")
    trained = ended if trained is None else trained
    return os.WIFSIGNALED(status), trained - began, ended - trained


def _moment(rng: random.Random, start: float, training: float) -> dict[str, Any]:
    if rng.random() < AT_THE_START:
        return {"kill_after": rng.uniform(0, start), "of_training": False}
    # a third, so that a run is killed several times before it ends
    return {"kill_after": rng.uniform(0, training / 3)}


def _verified(workdir: Path) -> int:
    """How many checkpoints there are, each as it was written. Raises LabError for another."""
    folders = [p for p in (workdir / "checkpoints").glob("*") if p.name.isdecimal()]
    for folder in folders:
        try:
            manifest.verify(folder)
        except manifest.Damaged as error:
            raise LabError(f"a kill left {folder} damaged: {error}") from None
    return len(folders)


def soak(kills: int, seed: int, folder: Path) -> str:
    """The line with the counts, once `kills` were killed in training and saving. Raises LabError
    for the first run that does not end like the one never killed."""
    began, rng = time.monotonic(), random.Random(seed)
    whole, timed = (Worker(folder / name, folder / "compiled") for name in ("whole", "timed"))
    _live(whole)  # compiles for all that follow
    expected = (whole.workdir / "outcome.json").read_bytes()
    _, start, length = _live(timed)
    counts, runs, verified = Counter(), 0, 0
    while counts[TRAINING] + counts[SAVING] < kills:
        worker = Worker(folder / str(runs), whole.cache)
        while _live(worker, **_moment(rng, start, length))[0]:
            counts[worker.phase[0]] += 1
            verified += _verified(worker.workdir)
        if (worker.workdir / "outcome.json").read_bytes() != expected:
            raise LabError(f"not as {whole.workdir}, never killed: {worker.workdir}, outcome.json")
        shutil.rmtree(worker.workdir)
        runs += 1
    return (
        f"soak: {counts.total()} kills ({counts[TRAINING]} in training, {counts[SAVING]} in "
        f"saving, {counts[STARTING]} at the start or end); {runs} of {runs} runs ended bit for bit "
        f"as one never killed; {verified} checkpoints verified after kills, none damaged; "
        f"seed {seed}, {time.monotonic() - began:.0f} s"
    )


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("kills", 50, "how many in training and saving", flag_values=values)
    flags.DEFINE_integer("seed", 0, "of the moments", flag_values=values)


def _run(values: flags.FlagValues) -> None:
    if values.kills < 1:
        raise ConfigError([f"--kills: expected at least 1, got {values.kills}"])
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    tell(soak(values.kills, values.seed, folder))
    shutil.rmtree(folder)  # kept to be looked at when something failed


if __name__ == "__main__":
    sys.exit(cli.main(_define, _run, usage=__doc__))
