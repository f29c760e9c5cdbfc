"""What a comparison would take, from one compilation and a few steps of each variant."""

import contextlib
import datetime
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from experiments.alike import alike, missed
from experiments.cells import Cells
from experiments.config import Experiment
from experiments.draws import JOURNAL
from experiments.fairness import Fairness
from experiments.quantities import Step, in_turns
from experiments.ready import ready
from experiments.report.table import number
from experiments.search import chosen, combinations, search
from experiments.stdout import Console
from experiments.sweep import Planned


def dry_run(
    sweep: Sequence[Planned], rules: Fairness, workdir: Path, *, retry_failed: bool = False
) -> None:
    """Prints every run with its folder, then what those still to be run would take; makes nothing
    in `workdir`. Raises what `compare` does before it claims the directory."""
    ready(workdir, sweep, rules)
    with tempfile.TemporaryDirectory() as copies:
        for name in ("alike.json", JOURNAL):  # which are written to where they are read
            if (there := workdir / name).exists():
                shutil.copy(there, copies)
        planned = alike(sweep, rules, Path(copies))
        best = _best(planned, rules, workdir, Path(copies), retry_failed) if rules.trials else None
    console = Console()
    for line in missed(planned, rules):
        console.print(line, style="red", highlight=False, soft_wrap=True)
    if rules.trials and best is None:
        # what they choose is not known, so nor are the folders of the runs
        what = f"{rules.trials} trials of each variant, which optuna draws"
        console.print(f"first {what}, not counted here")
        console.print(f"then {len(planned)} with what was best on validation")
        console.print(estimate(planned))
        return
    listed = best or (combinations(planned, rules) if rules.search else planned)
    cells = Cells(workdir, tuple(listed))
    left = _list(cells, console, retry_failed)
    if rules.search and not rules.trials:
        console.print(f"then {len(planned)} with what was best on validation")
        searching = {p.variant for p in left}  # of the others what was best is known
        known, tried = (
            [p for p in runs if p.variant not in searching] for runs in (planned, cells.planned)
        )
        best = chosen(known, Cells(workdir, tuple(tried)), rules)
        left += [p for p in planned if p.variant in searching]
        left += _list(Cells(workdir, tuple(best)), console, retry_failed)
    if left:
        console.print(estimate(left))


class _NotEnded(Exception):
    """A trial that the search would run."""


def _best(
    planned: Sequence[Planned], rules: Fairness, workdir: Path, copies: Path, retry_failed: bool
) -> list[Planned] | None:
    """The runs with what was best of the trials that optuna drew; None if not all have ended."""
    (copies / "cells").symlink_to((workdir / "cells").absolute())

    def finish(cells: Cells) -> bool:
        outcomes = map(cells.outcome, cells.planned)
        if not all(result or (error and not retry_failed) for result, error in outcomes):
            raise _NotEnded
        return True

    with contextlib.suppress(_NotEnded):
        return chosen(planned, search(planned, rules, copies, finish), rules)
    return None


def _list(cells: Cells, console: Console, retry_failed: bool) -> list[Planned]:
    """Prints each run with its folder; those that would be run."""
    left = []
    for p in cells.planned:
        result, error = cells.outcome(p)
        what = "ended" if result else "failed" if error and not retry_failed else "to run"
        left += [p] if what == "to run" else []
        console.print(f"{what}  {cells.folder(p)}", highlight=False, soft_wrap=True)
    return left


def estimate(planned: Sequence[Planned]) -> Table:
    """The runs by variant: their work, the memory of a step, and the time of their steps here if
    one run has all cores, compilation included; evaluation and saving come on top."""
    table = Table(
        caption="time: of compiling and training steps, each run by itself", caption_justify="left"
    )
    for heading in ("variant", "runs", "steps", "TFLOP", "peak MB", "time"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    runs, total = {}, 0.0
    for p in planned:
        runs.setdefault(p.variant, []).append(p.experiment)
    with Console().status("") as status:  # at full size steps take minutes
        for n, (variant, experiments) in enumerate(runs.items(), 1):
            status.update(Text(f"a few steps of {variant} ({n} of {len(runs)})"))
            row, seconds = _row(experiments)
            total += seconds
            table.add_row(Text(variant), *row)
    table.add_section()
    table.add_row("all", f"{len(planned)}", "", "", "", _time(total))
    return table


def _row(experiments: Sequence[Experiment]) -> tuple[list[str], float]:
    """What the runs of a variant take, and their seconds."""
    step = Step(experiments[0])
    program = step.program
    milliseconds = in_turns({"": step}, rounds=5, seconds=10)[""].median
    steps = sum(e.train.steps for e in experiments)
    seconds = len(experiments) * program.compile_seconds + steps * milliseconds / 1e3
    bound = "≥ " if step.work.unknown else ""
    row = [
        f"{len(experiments)}",
        f"{steps:,}",
        bound + number(step.work.flops * steps / 1e12),
        number(program.peak_bytes / 1e6),
        _time(seconds),
    ]
    return row, seconds


def _time(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


if __name__ == "__main__":
    raise SystemExit(
        "no command, but python -m experiments.compare --config=FILE --workdir=DIR --dry_run"
    )
