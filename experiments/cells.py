"""The runs of a comparison on disk: the outcome of each, and which process may run it now."""

import contextlib
import dataclasses
import datetime
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import disk, records
from experiments.errors import DeviceError, Interrupted, InUseError, LabError, RunDirectoryError
from experiments.fairness import Fairness
from experiments.lock import held, held_soon
from experiments.redact import redacted
from experiments.report.data import Cell, summary
from experiments.rundir import METRICS, RESULT, moved, read_json, refuse_cells
from experiments.signals import Signals
from experiments.sweep import HASH, Planned
from experiments.validation import differences

FAILURE, CLAIM, NOTES = "failure.json", "claim", "notes.json"
SHOWN = 20  # lines of differences
Run = Callable[..., dict[str, Any]]  # experiments.train.run


def begin(workdir: Path, sweep: Sequence[Planned], rules: Fairness) -> None:
    """Claims the directory for this comparison. Raises what `check` does."""
    check(workdir, sweep, rules)  # before anything is made there
    with held_soon(workdir):
        disk.write_json(workdir / "sweep.json", check(workdir, sweep, rules))


def check(workdir: Path, sweep: Sequence[Planned], rules: Fairness) -> dict:
    """What `begin` will write. Raises RunDirectoryError if the directory is a single run's, or
    another comparison's (runs and trials may be added to one, but none removed or changed), or the
    cells of one; if it cannot be known whose it is; or if it is not a directory."""
    if workdir.exists() and not workdir.is_dir():
        raise RunDirectoryError(f"{workdir} is a file; give another --workdir")
    if (workdir / "config.json").exists():
        raise RunDirectoryError(f"{workdir} holds a single training run; name another --workdir")
    refuse_cells(workdir)
    before = begun(workdir / "sweep.json")
    runs = {p.name: {"variant": p.variant, "config": p.config} for p in sweep}
    now = {"rules": dataclasses.asdict(rules), "runs": runs}
    if before is not None and (lines := _changed(before, now)):
        raise RunDirectoryError(
            "\n  ".join([f"{workdir} holds another comparison:", *lines])
            + "\ngive another --workdir, or the configuration that it was started with"
            + moved(lines)
        )
    return now


def begun(path: Path) -> dict | None:
    """What `begin` wrote; None if it did not. Raises RunDirectoryError for anything else."""
    if (before := read_json(path)) is None:
        return None
    whole = lambda x: isinstance(x["variant"], str) and isinstance(x["config"]["seed"], int)
    try:
        runs = before["runs"].values()
        if isinstance(before["rules"], dict) and runs and all(map(whole, runs)):
            return before
    except (KeyError, TypeError, AttributeError):
        pass
    raise RunDirectoryError(
        f"{path} is not as experiments.compare wrote it: damaged or edited\n"
        "  put it back, or give another --workdir"
    )


def _changed(before: dict, now: dict) -> list[str]:
    """What was lost or differs, each lost run beside the one that stands in its place."""
    alike = lambda x: (x["variant"], x["config"].get("seed"))
    places = {alike(x): x["config"] for x in now["runs"].values()}
    rules = before["rules"]
    if isinstance(rules.get("trials"), int) and rules["trials"] < (now["rules"]["trials"] or 0):
        rules = rules | {"trials": now["rules"]["trials"]}  # each follows from those before it
    lines = differences(rules, now["rules"])
    still = {name[-HASH:] for name in now["runs"]}
    variants = {variant for variant, _ in places}
    for lost in (run for name, run in before["runs"].items() if name[-HASH:] not in still):
        variant, seed = place = alike(lost)
        gone = f"seed {seed}" if variant in variants else "it"
        other = places.get(place)
        found = differences(lost["config"], other) if other else [f"{gone} is no longer there"]
        lines += [f"{variant}: {line}" for line in found]
    lines = sorted(set(lines))
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def failure(folder: Path) -> str | None:
    """Why a run failed; None if it did not, or if the record is not as `Cells.work` wrote it."""
    error = (records.read_object(folder / FAILURE) or {}).get("error")
    return error if isinstance(error, str) else None


def forget_failures(workdir: Path) -> None:
    for path in workdir.glob(f"cells/*/{FAILURE}"):
        path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Cells:
    """Runs, each in workdir/cells/<name>. Any number of processes may `work` on them."""

    workdir: Path
    planned: tuple[Planned, ...]

    def __post_init__(self) -> None:
        """Each stays in the folder that it was begun in: a run that is added to a sweep may change
        what the variants of others are called. A copy of its own folder is not that one."""
        begun = {x.name[-HASH:]: x.name for x in (self.workdir / "cells").glob("*-*")}
        begun |= {p.name[-HASH:]: p.name for p in self.planned if self.folder(p).is_dir()}
        kept = lambda p: begun.get(p.name[-HASH:], p.name)
        stay = lambda p: p if kept(p) == p.name else dataclasses.replace(p, kept_as=kept(p))
        object.__setattr__(self, "planned", tuple(map(stay, self.planned)))

    def folder(self, planned: Planned) -> Path:
        return self.workdir / "cells" / planned.name

    def outcome(self, planned: Planned) -> tuple[dict[str, Any] | None, str | None]:
        """(result, None), (None, error), or (None, None) of a run that has not ended."""
        result = records.read_object(self.folder(planned) / RESULT)
        if result is not None and records.is_result(result, planned.config):
            return result, None  # what is damaged is left to the run, which says what is wrong
        return None, failure(self.folder(planned))

    def unfinished(self) -> list[Planned]:
        return [p for p in self.planned if self.outcome(p) == (None, None)]

    def held_elsewhere(self) -> bool:
        """Whether another process runs one of them now."""
        for planned in self.unfinished():
            try:
                with held(self.folder(planned), CLAIM):
                    pass
            except InUseError:
                return True
        return False

    def work(self, run: Run, command: str, tell: Callable[[str], None]) -> None:
        """Run, in order, what has not ended and no other process holds. A failure is recorded
        beside the run; an interruption is raised again."""
        waiting = left = self.unfinished()
        pace = Pace(len(waiting))
        places = {planned.name: n for n, planned in enumerate(self.planned, 1)}
        for planned in waiting:
            with contextlib.suppress(InUseError), held(self.folder(planned), CLAIM):
                if self.outcome(planned) != (None, None):
                    continue  # another process was faster
                # not all of them anew: there may be a thousand, and what has ended stays so
                left = [p for p in left if self.outcome(p) == (None, None)]
                trial = planned.notes.get("trial")
                one_of = f"{places[planned.name]} of {len(self.planned)}: {planned.variant}"
                name = f"trial {one_of}, {trial}"
                if not trial:
                    name = f"run {one_of}, seed {planned.experiment.seed}"
                tell(f"{name} ({len(left)} to run{pace.rest(len(left))})")
                Signals.last = None
                if error := _attempt(run, planned, self.folder(planned), command):
                    disk.write_json(self.folder(planned) / FAILURE, {"error": error})
                    tell(f"  failed: {summary(error)}")
                    if Signals.last is not None:
                        told = "the same command goes on with the others"
                        raise Interrupted(Signals.last, told)

    def note(self) -> None:
        """Keeps how each was made fair, if any was, for a report before all have ended."""
        if notes := {p.name: p.notes for p in self.planned if p.notes}:
            with held_soon(self.workdir):
                disk.write_json(self.workdir / NOTES, notes)

    def found(self) -> tuple[Cell, ...]:
        """All runs as a report shows them. One that has not ended is a failure, with the reason."""
        return tuple(map(self._cell, self.planned))

    def _cell(self, planned: Planned) -> Cell:
        result, error = self.outcome(planned)
        if result is None and error is None:
            why = f"its process was killed (memory?), or {self.folder(planned)} is in use"
            error = f"unfinished: {why}; the same command goes on with it"
        try:
            metrics = tuple(records.read_metrics(self.folder(planned) / METRICS))
        except OSError as cause:  # as a report of it has it: the others' is written
            metrics, result = (), None
            error = error or f"metrics.jsonl cannot be read: {cause.strerror}, so left out"
        seed = planned.experiment.seed
        return Cell(
            planned.name,
            planned.variant,
            seed,
            planned.config,
            result,
            error,
            metrics,
            planned.notes,
        )


def _attempt(run: Run, planned: Planned, folder: Path, command: str) -> str | None:
    """The error of a run that failed."""
    try:
        run(planned.experiment, folder, command=command)
    except (Interrupted, InUseError, DeviceError):  # of every run that would come after it
        raise
    except (LabError, OSError) as error:
        if disk.is_full(error):  # for those that would come after it too
            raise
        return _told(error)
    except (Exception, SystemExit) as error:  # of a mechanism or a task of the user's own
        return _told(error)
    return None


def _told(error: BaseException) -> str:
    """With where it came from, if nobody foresaw it."""
    told = f"{type(error).__name__}: {error}"
    return told if isinstance(error, LabError) else redacted(f"{told}\n\n{traceback.format_exc()}")


class Pace:
    """How long the runs take, in whatever process, to estimate how long the rest will."""

    def __init__(self, left: int) -> None:
        self.first, self.start = left, time.monotonic()

    def rest(self, left: int) -> str:
        if not (done := self.first - left):
            return ""
        seconds = left * (time.monotonic() - self.start) / done
        return f", about {datetime.timedelta(seconds=round(seconds))}"
