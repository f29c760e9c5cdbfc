"""The training loop: steps, evaluation, checkpoints, metrics; stopped and resumed anywhere."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import records
from experiments.checkpoint import Checkpoints
from experiments.config import Experiment
from experiments.devices import Devices
from experiments.display import Display
from experiments.errors import ConfigError, Interrupted, NonFiniteError, RunDirectoryError
from experiments.evaluate import evaluate
from experiments.learner import Learner, State, refusing
from experiments.rundir import claimed, read_json, write_config
from experiments.signals import Signals
from experiments.start import start
from experiments.tasks import Batch

RESULT, METRICS = "result.json", "metrics.jsonl"
AHEAD = 2  # steps that the device may be behind the host
LOOK = 0.25  # seconds between looks at the metrics: fetching each step's would hold up the device


def run(experiment: Experiment, workdir: Path, *, command: str, progress: bool) -> dict[str, Any]:
    """`experiments.train.run`."""
    with Signals() as signals, claimed(workdir, experiment):
        with contextlib.suppress(RunDirectoryError):  # damaged: it is made again
            if records.is_result(result := read_json(workdir / RESULT)):
                return result
        with Display(total=experiment.train.steps, shown=progress) as display:
            session = Session(experiment, workdir, signals=signals, display=display)
            try:
                # Not before the model could be built: until then the directory is nobody's.
                write_config(workdir, experiment)
                records.write_json(workdir / "environment.json", records.environment(command))
                return session.run()
            except OSError as error:
                raise RunDirectoryError(f"{workdir} cannot be written to: {error}") from error


def _fits(state: State) -> None:
    """Raises ConfigError for a state that memory cannot hold: XLA would wait for it forever."""
    need = 2 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > have and jax.devices()[0].platform == "cpu":
        what = (
            f"model: expected a state of at most {have / 2e9:.0f} GB, half of this machine's memory"
        )
        raise ConfigError([f"{what}, got {need / 2e9:,.0f} GB; make it smaller"])


class Session:
    """From the newest checkpoint, or from the start, to the end or to a signal."""

    def __init__(
        self, experiment: Experiment, workdir: Path, *, signals: Signals, display: Display
    ) -> None:
        self.experiment, self.metrics = experiment, workdir / METRICS
        self.workdir, self.signals, self.display = workdir, signals, display
        self.began, self.training = time.monotonic(), 0.0
        self.learner, train = Learner(experiment), experiment.train
        self.devices = Devices.dividing(train.batch_size, train.eval_batch_size)
        _fits(jax.eval_shape(self.learner.init))
        self.checkpoints = Checkpoints.of(workdir, experiment)
        self.best: dict[str, Any] | None = None  # {"step": ..., "accuracy": ...} on validation
        self.earlier = {"wall": 0.0, "training": 0.0, "compile": 0.0}  # seconds, other sessions
        self.saved: int | None = None  # the newest checkpoint
        state = self._restored() or start(self.learner, tell=display.tell)
        self.state = self.devices.hold(state)
        self.step = self.first = int(self.state.step)
        self._compile()

    def _restored(self) -> State | None:
        like = jax.eval_shape(self.learner.init)
        found = self.checkpoints.restore(like, tell=self.display.tell)
        if found is None:
            return None
        state, progress = found
        self.best, self.earlier = progress["best"], progress["seconds"]
        self.saved = int(state.step)
        self.display.tell(f"going on from step {self.saved}")
        return state

    def _compile(self) -> None:
        # Ahead of time, so that a batch unlike the first is an error and not a second compilation.
        start, learner = time.monotonic(), self.learner
        whole = self.devices.whole
        step = jax.jit(learner.train_step, donate_argnums=0, out_shardings=whole)
        arguments = self.state, self._batch(), np.int32(self.step)
        self.train_step = refusing("the model", lambda: step.lower(*arguments)).compile()
        size = self.experiment.train.eval_batch_size
        held_out = self.devices.split(next(self.experiment.posed.evaluation("validation", size)))
        score = jax.jit(learner.eval_step, out_shardings=whole)
        self.eval_step = refusing(
            "the model", lambda: score.lower(self.state.params, held_out)
        ).compile()
        self.compiling = time.monotonic() - start

    def _batch(self) -> Batch:
        e = self.experiment
        draw = lambda: e.posed.batch(e.seed, self.step, e.train.batch_size)
        batch = refusing("the task", lambda: self.learner.shape.check(draw()))
        return self.devices.split(batch)

    def run(self) -> dict[str, Any]:
        """result.json. Raises Interrupted after a signal, NonFiniteError where training fails."""
        records.repair_metrics(self.metrics, self.step)
        train, pending = self.experiment.train, []
        batch, looked = self._batch(), time.monotonic()
        while self.step < train.steps and not self.signals.caught:
            self.state, metrics = self.train_step(self.state, batch, np.int32(self.step))
            pending.append(metrics)
            self.step += 1
            last = self.step == train.steps
            batch = None if last else self._batch()  # while the device is at work
            jax.block_until_ready(pending[-AHEAD:][0]["loss"])
            scoring = last or self.step % train.eval_every == 0
            saving = last or self.step % train.save_every == 0 or bool(self.signals.caught)
            if scoring or saving or time.monotonic() - looked > LOOK:
                rows = self._fetch(pending)
                self.training += time.monotonic() - looked
                if scoring:
                    rows[-1]["validation"] = self._score("validation", self.state)
                    saving |= self._is_best(rows[-1]["validation"]["accuracy"])
                records.append_metrics(self.metrics, rows, sync=saving)
                if saving:
                    self._save()
                self.display.update(self.step, rows[-1], rate=self._rate())
                pending, looked = [], time.monotonic()
        result = self._finish() if self.step == train.steps else None
        if self.signals.caught:
            self._stop()
        return result

    def _fetch(self, pending: list[dict[str, jax.Array]]) -> list[dict[str, Any]]:
        """A row for each step. Raises NonFiniteError for the first that went wrong."""
        rows, seconds = [], time.monotonic() - self.began + self.earlier["wall"]
        for i, values in enumerate(jax.device_get(pending)):
            step, finite = self.step - len(pending) + i + 1, values.pop("finite")
            if not finite.all():
                records.append_metrics(self.metrics, rows, sync=True)
                name = self.learner.names(self.state)[int(np.argmin(finite))]
                kept = "none was saved yet" if self.saved is None else f"the last is {self.saved}"
                raise NonFiniteError(
                    f"step {step}: {name} is not finite; nothing of this step was kept "
                    f"(checkpoints: {kept}, in {self.workdir})"
                )
            numbers = {name: float(value) for name, value in values.items()}
            rows.append({"step": step, **numbers, "seconds": round(seconds, 3)})
        return rows

    def _score(self, split: str, state: State) -> dict[str, Any]:
        size = self.experiment.train.eval_batch_size
        step = lambda params, batch: self.eval_step(params, self.devices.split(batch))
        return evaluate(step, state.params, self.experiment.posed, split, size)

    def _is_best(self, accuracy: float) -> bool:
        better = self.best is None or accuracy > self.best["accuracy"]
        if better:
            self.best = {"step": self.step, "accuracy": accuracy}
        return better

    def _save(self) -> None:
        progress = {"best": self.best, "seconds": self._seconds()}
        best = None if self.best is None else self.best["step"]
        self.checkpoints.save(self.step, self.state, progress=progress, best=best)
        self.saved = self.step

    def _stop(self) -> None:
        if self.saved != self.step:
            self._save()
        name, steps = signal.Signals(self.signals.caught).name, self.experiment.train.steps
        message = f"{name}: step {self.step} of {steps} is saved; the same command goes on from it"
        raise Interrupted(self.signals.caught, message)

    def _seconds(self) -> dict[str, float]:
        now = {"wall": time.monotonic() - self.began, "training": self.training}
        now["compile"] = self.compiling
        return {name: round(now[name] + self.earlier[name], 3) for name in now}

    def _rate(self) -> float:
        return (self.step - self.first) / max(self.training, 1e-9)

    def _finish(self) -> dict[str, Any]:
        """Tests the best parameters, once, and writes the result."""
        like = jax.eval_shape(self.learner.init)
        chosen = self.devices.hold(self.checkpoints.load(self.best["step"], like))
        seconds = self._seconds()
        found = {
            "validation": self._score("validation", chosen),
            "test": self._score("test", chosen),
            "best_step": self.best["step"],
            "steps": self.step,
            "parameters": sum(x.size for x in jax.tree.leaves(chosen.params)),
            "baselines": self.experiment.posed.baselines(),
            "steps_per_second": round(self.step / max(seconds["training"], 1e-9), 3),
            "compile_seconds": seconds["compile"],
            "wall_seconds": seconds["wall"],
        }
        result = records.sealed(found)
        records.write_json(self.workdir / RESULT, result)
        return result
