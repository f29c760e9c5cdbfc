"""The training loop: steps, evaluation, checkpoints, metrics; stopped and resumed anywhere."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attn.nn.functional import learned
from experiments import disk, fits, records
from experiments.ahead import Ahead
from experiments.checkpoint import Checkpoints
from experiments.compiled import Compiled
from experiments.config import Experiment
from experiments.devices import Devices
from experiments.display import Display
from experiments.errors import CheckpointError, Interrupted, NonFiniteError
from experiments.evaluate import Answers
from experiments.learner import Learner, State, refusing
from experiments.lock import Held
from experiments.measure.cost import Known
from experiments.rundir import METRICS, RESULT
from experiments.signals import Signals
from experiments.sinks import Sinks
from experiments.start import start
from experiments.tasks import Batch
from experiments.validation import to_dict

AHEAD = 2  # calls that the device may be behind the host
FRESH = {
    "best": None,
    "skipped": [],
    "seconds": {"wall": 0.0, "training": 0.0, "compile": 0.0},
}
LOOK = 0.25  # seconds between looks at the metrics: fetching each step's would hold up the device


class Session:
    """From the newest checkpoint, or from the start, to the end or to a signal."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: Path,
        *,
        lock: Held,
        signals: Signals,
        display: Display,
        copies: Sinks,
        drawing: ThreadPoolExecutor,
        known: Known | None,
    ) -> None:
        self.experiment, self.metrics = experiment, workdir / METRICS
        self.seed = np.int32(experiment.seed)
        self.workdir, self.signals, self.display = workdir, signals, display
        self.copies, self.lock, self.drawing = copies, lock, drawing
        self.began, self.training = time.monotonic(), 0.0
        self.learner, train = Learner(experiment, known), experiment.train
        self.together = train.together
        self.devices = Devices.dividing(train.batch_size, train.eval_batch_size)
        # what the result would not hold is named now, and not after the last step
        self.baselines = refusing("the task", experiment.posed.accuracies)
        self.checkpoints = Checkpoints.of(workdir, experiment)
        self.skipped: dict[int, str] = {}  # steps whose batch changes nothing, and why
        # of the step whose validation was the best in this session
        self.validated: tuple[int, Answers] | None = None
        self.earlier = self._newest()["seconds"]  # of other sessions
        self.first = self.step
        if self.saved is None:
            self._starting_over()
        self._compile()

    def _newest(self) -> dict[str, Any]:
        """Takes up the newest checkpoint, or the state before the first step; its progress."""
        found = self.checkpoints.restore(self.learner.shapes, tell=self.display.warn)
        state, progress = found or (start(self.learner, tell=self.display.tell), FRESH)
        self.leaves = jax.tree.leaves(self.devices.hold(state))
        self.step = int(state.step)
        self.saved = self.step if found else None  # the newest checkpoint
        # {"step": ..., "accuracy": ...} on validation, of a checkpoint that is there
        self.best: dict[str, Any] | None = progress["best"]
        self.skipped = dict(progress["skipped"]) | self.skipped
        if found:
            self.display.tell(f"going on from step {self.saved}")
        return progress

    @property
    def state(self) -> State:
        return self.learner.state_of(self.leaves)

    def _starting_over(self) -> None:
        """Says so if steps are made again. Raises CheckpointError where a checkpoint of them must
        have been there: metrics are not erased for one that was lost."""
        train = self.experiment.train
        done = max((row["step"] for row in records.read_metrics(self.metrics)), default=0)
        # the first evaluation is the best so far, so it saves; rows are written before the save
        first = min(train.save_every, train.eval_every, train.steps)
        if done > first and train.on_save_error == "stop":
            raise CheckpointError(
                f"{self.metrics} goes to step {done}, but there is no checkpoint in "
                f"{self.checkpoints.directory}, where the first is saved at step {first}\n"
                "  put it back; to start over, remove the metrics or give another --workdir"
            )
        if done:
            self.display.warn(f"no checkpoint was saved: steps 1 to {done} are made again")

    def _compile(self) -> None:
        start, learner = time.monotonic(), self.learner
        fixed = {"known": learner.known, "out_shardings": self.devices.whole}
        once = lambda *what, **options: refusing(
            "the model", lambda: Compiled.of(*what, **fixed, **options)
        )
        batches, steps = self.drawing.submit(self._batches, self.step).result()
        of_step = self.leaves, batches, steps, self.seed
        self.train_steps = once(learner.train_steps, *of_step, donate_argnums=0)
        size = self.experiment.train.eval_batch_size
        held_out = self.devices.split(next(self.experiment.posed.evaluation("validation", size)))
        self.eval_step = once(learner.eval_step, self.state.params, held_out)
        fits.program("train.batch_size", self.train_steps.program)
        fits.program("train.eval_batch_size", self.eval_step.program)
        self.compiling = time.monotonic() - start

    def _drawn(self) -> Ahead[tuple[Batch, np.ndarray]]:
        """What the calls from here to the end take."""
        calls = range(self.step, self.experiment.train.steps, self.together)
        return Ahead(self.drawing, self._batches, calls)

    def _batches(self, first: int) -> tuple[Batch, np.ndarray]:
        """Those of one call, stacked and on the devices, and the number of each, -1 of one to pass
        over."""
        numbers = range(first, first + self.together)
        stacked = jax.tree.map(lambda *x: np.stack(x), *map(self._batch, numbers))
        steps = np.int32([-1 if n + 1 in self.skipped else n for n in numbers])
        return self.devices.split_each(stacked), steps

    def _batch(self, number: int) -> Batch:
        e, rows = self.experiment, self.experiment.train.batch_size
        draw = lambda: e.posed.batch(e.seed, number, rows)
        return refusing("the task", lambda: self.learner.shape.check(e.posed.checked(draw(), rows)))

    def run(self) -> dict[str, Any]:
        """Runs, and returns result.json. Raises Interrupted after a signal, NonFiniteError if
        training fails."""
        self.lock.check()
        if lost := self.step - records.repair_metrics(self.metrics, self.step):
            self.display.warn(f"{self.metrics} lacks {lost} of the rows up to step {self.step}")
        train, pending = self.experiment.train, []
        drawn, looked = self._drawn(), time.monotonic()
        stopping = bool(self.signals.caught)
        while self.step < train.steps and not stopping:
            self.step += self.together
            last = self.step == train.steps
            pending.append(self._train(*drawn.next()))
            jax.block_until_ready(pending[-AHEAD:][0])
            scoring = last or self.step % train.eval_every == 0
            stopping = bool(self.signals.caught)  # read once: what stops saves its rows too
            saving = last or self.step % train.save_every == 0 or stopping
            if scoring or saving or time.monotonic() - looked > LOOK:
                rows = self._fetch(pending)
                if not rows:
                    drawn, pending, looked = self._drawn(), [], time.monotonic()
                    continue
                self.training += time.monotonic() - looked
                best = self.best
                if scoring:
                    answers = self._answers("validation", self.state)
                    rows[-1]["validation"] = scores = answers.scores()
                    best = self._best_with(scores["accuracy"])
                    if best is not self.best:
                        saving, self.validated = True, (self.step, answers)
                self.lock.check()
                records.append_metrics(self.metrics, rows, sync=saving)
                self.copies.write(rows)
                if saving:
                    self._save(best, needed=last)
                self.display.update(self.step, rows[-1], rate=self._rate())
                pending, looked = [], time.monotonic()
        result = self._finish() if self.step == train.steps else None
        if self.signals.caught:
            self._stop()
        return result

    def _train(self, batches: Batch, steps: np.ndarray) -> dict[str, jax.Array]:
        """What happened in each."""
        self.leaves, metrics = self.train_steps(self.leaves, batches, steps, self.seed)
        return metrics

    def _fetch(self, pending: list[dict[str, jax.Array]]) -> list[dict[str, Any]]:
        """A row for each step; none after going back to a checkpoint. Raises NonFiniteError for the
        first that went wrong, if the run is not to do without it."""
        rows, seconds = [], round(time.monotonic() - self.began + self.earlier["wall"], 3)
        calls = jax.device_get(pending)
        steps = [{k: x[i] for k, x in call.items()} for call in calls for i in range(self.together)]
        for step, values in enumerate(steps, self.step - len(steps) + 1):
            finite = values.pop("finite")
            if step not in self.skipped and not finite.all():
                name = self.learner.names(self.state)[int(np.argmin(finite))]
                try:
                    self._do_without(step, name)
                except NonFiniteError:
                    records.append_metrics(self.metrics, rows, sync=True)
                    raise
                if self.experiment.train.on_nonfinite == "rollback":
                    self._go_back()
                    return []
            numbers = {name: float(value) for name, value in values.items()}
            what = {"skipped": self.skipped[step]} if step in self.skipped else numbers
            rows.append({"step": step, **what, "seconds": seconds})
        return rows

    def _do_without(self, step: int, name: str) -> None:
        """Notes the batch as one to pass over. Raises NonFiniteError if it may not be."""
        train = self.experiment.train
        limit = 0 if train.on_nonfinite == "stop" else train.nonfinite_limit
        if len(self.skipped) >= limit:
            others = f", after {limit} other batches that were passed over" if limit else ""
            raise self._not_finite(step, f"{name} is not finite{others}")
        self.skipped[step] = name
        self.display.warn(f"step {step}: {name} is not finite; this batch is passed over")

    def _not_finite(self, step: int, what: str) -> NonFiniteError:
        kept = "none was saved yet" if self.saved is None else f"the last is {self.saved}"
        return NonFiniteError(
            f"step {step}: {what}; nothing of this step was kept "
            f"(checkpoints: {kept}, in {self.workdir})"
        )

    def _go_back(self) -> None:
        """To the newest checkpoint, or to the start if there is none."""
        progress = self._newest()
        records.repair_metrics(self.metrics, self.step)
        # the time of steps that are made again is none of a step's, as after a kill
        self.earlier = self.earlier | {"training": progress["seconds"]["training"]}
        self.first, self.training = self.step, 0.0
        self.display.warn(f"back at step {self.step}")

    def _answers(self, split: str, state: State) -> Answers:
        size = self.experiment.train.eval_batch_size
        step = lambda params, batch: self.eval_step(params, self.devices.split(batch))
        found = Answers.of(step, state.params, self.experiment.posed, split, size)
        if not math.isfinite(found.loss):
            raise self._not_finite(int(state.step), f"{split} loss is not finite")
        return found

    def _best_with(self, accuracy: float) -> dict[str, Any]:
        if self.best is None or accuracy > self.best["accuracy"]:
            return {"step": self.step, "accuracy": accuracy}
        return self.best

    def _save(self, best: dict[str, Any] | None, *, needed: bool) -> None:
        skipped = sorted(self.skipped.items())
        progress = {"best": best, "skipped": skipped, "seconds": self._seconds()}
        step = None if best is None else best["step"]
        self.lock.check()
        try:
            self.checkpoints.save(self.step, self.state, progress=progress, best=step)
        except CheckpointError as error:
            if needed or self.experiment.train.on_save_error == "stop":
                raise
            self.display.warn(f"{error}; going on without it")
            return
        self.saved, self.best = self.step, best

    def _stop(self) -> None:
        if self.saved != self.step:
            self._save(self.best, needed=True)
        step = f"step {self.step} of {self.experiment.train.steps}"
        told = f"{step} is saved; the same command goes on from it"
        raise Interrupted(self.signals.caught, told)

    def _seconds(self) -> dict[str, float]:
        now = {"wall": time.monotonic() - self.began, "training": self.training}
        now["compile"] = self.compiling
        return {name: round(now[name] + self.earlier[name], 3) for name in now}

    def _rate(self) -> float:
        return (self.step - self.first) / max(self.training, 1e-9)

    def _finish(self) -> dict[str, Any]:
        """Tests the best parameters, once, and writes the result."""
        chosen = self.checkpoints.load(self.best["step"], self.learner.shapes)
        chosen = self.devices.hold(chosen)
        seconds = self._seconds()
        step, before = self.validated or (None, None)
        # another session's best, or one before a save that failed, is asked again
        known = before if step == self.best["step"] else self._answers("validation", chosen)
        answers = {"validation": known, "test": self._answers("test", chosen)}
        found = {
            **{split: x.scores() | {"by_row": x.by_row()} for split, x in answers.items()},
            "best_step": self.best["step"],
            "steps": self.step,
            "parameters": learned(chosen.params),
            "baselines": self.baselines,
            "steps_per_second": round(self.step / max(seconds["training"], 1e-9), 3),
            "compile_seconds": seconds["compile"],
            "wall_seconds": seconds["wall"],
        }
        result = records.sealed(found, to_dict(self.experiment))
        self.lock.check()
        disk.write_json(self.workdir / RESULT, result)
        return result
