"""python -m experiments.compare --config=FILE[:ARG] --workdir=DIR [--config.a.b=value]

Trains every run that the file's `sweep()` yields, each in DIR/cells/<variant>-<seed>-<hash of its
configuration>; then writes DIR/report.html, table.md, results.csv, results.json and figures/. The
same command again continues: what is finished is never run again, what was interrupted goes on from
its last checkpoint, and what failed is tried again. Exit code 1 if any run failed.
"""

import ast
import contextlib
import datetime
import functools
import shlex
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console

from experiments import cli, records
from experiments.gathered import RESULT, dates, machine, without_run
from experiments.gathered import read as _read
from experiments.config import Experiment
from experiments.config_file import read_sweep
from experiments.errors import Interrupted, LabError, RunDirectoryError
from experiments.lock import held
from experiments.report import Comparison, write
from experiments.report.costs import costs
from experiments.report.data import Cell, failures, summary, variants
from experiments.report.merge import apart
from experiments.report.table import terminal
from experiments.sweep import Planned, plan
from experiments.validation import to_dict

Run = Callable[..., dict[str, Any]]  # experiments.train.run
Measure = Callable[[dict[str, Experiment], Path], dict[str, dict[str, Any]]]


def compare(
    sweep: Sequence[Planned],
    workdir: Path,
    *,
    title: str,
    about: str = "",
    command: str = "",
    run: Run,
    measure: Measure = costs,
    console: Console | None = None,
) -> Comparison:
    """Run what is not finished, then write the report; failures are cells with their error."""
    console = console or Console()
    with claimed(workdir) as folder:
        cells, pace = [], Pace(sum(_read(folder / p.name / RESULT) is None for p in sweep))
        for number, planned in enumerate(sweep, 1):
            attempt = functools.partial(_attempt, run, planned, folder, command, console)
            result, error = _read(folder / planned.name / RESULT), None
            if result is None:
                name = f"{planned.variant}, seed {planned.experiment.seed}"
                line = f"run {number} of {len(sweep)}: {name}{pace.left()}"
                console.print(line, style="bold", markup=False, highlight=False)
                result, error = pace.timed(attempt)
            cells.append(_cell(planned, folder, result, error))
        chosen = {p.variant: p.experiment for p, cell in zip(sweep, cells) if cell.result}
        comparison = Comparison(
            title=title,
            about=about,
            cells=tuple(cells),
            costs=_costs(measure, chosen, workdir / "costs.json", console),
            baselines=sweep[0].experiment.posed.baselines(),
            environment=without_run(records.environment()),
            command=command,
            dates=dates(folder, cells),
        )
        comparison = apart(comparison)
        path = write(comparison, workdir)
    console.print(terminal(variants(comparison.cells, comparison.costs)))
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
    return comparison


class Pace:
    """How long the runs take, to say how long the rest will."""

    def __init__(self, count: int) -> None:
        self.count, self.seconds = count, []

    def timed(self, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds.append(time.perf_counter() - start)

    def left(self) -> str:
        if not self.seconds:
            return ""
        seconds = statistics.fmean(self.seconds) * (self.count - len(self.seconds))
        return f" (about {datetime.timedelta(seconds=round(seconds))} left)"


def _cell(planned: Planned, folder: Path, result: dict | None, error: str | None) -> Cell:
    metrics = tuple(records.read_metrics(folder / planned.name / "metrics.jsonl"))
    config, seed = to_dict(planned.experiment), planned.experiment.seed
    own = machine(_read(folder / planned.name / "environment.json") or {})
    return Cell(planned.name, planned.variant, seed, config, result, error, metrics, own)


def _costs(measure: Measure, chosen: dict[str, Experiment], cache: Path, console: Console) -> dict:
    """{} if it fails: a report without costs is better than none after hours of training."""
    try:
        with console.status("measuring what each variant costs"):
            return measure(chosen, cache)
    except Exception as error:
        why = f"costs could not be measured: {type(error).__name__}: {error}"
        console.print(why, style="red", markup=False, highlight=False)
        return {}


@contextlib.contextmanager
def claimed(workdir: Path) -> Iterator[Path]:
    """The folder for cells, held by this process. Raises RunDirectoryError where it cannot be."""
    if (workdir / "config.json").exists():
        raise RunDirectoryError(f"{workdir} holds a single training run; name another --workdir")
    with held(workdir):
        (workdir / "cells").mkdir(exist_ok=True)
        yield workdir / "cells"


def _attempt(run: Run, planned: Planned, folder: Path, command: str, console: Console):
    """(result, None), or (None, error) of a run that failed. An interruption is passed on."""
    try:
        result = run(planned.experiment, folder / planned.name, command=command)
    except Interrupted:
        raise
    except LabError as error:
        message = f"{type(error).__name__}: {error}"
    except Exception as error:
        message = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
    else:
        return result, None
    console.print(f"  failed: {summary(message)}", style="red", markup=False, highlight=False)
    return None, message


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "a file with get_config() and sweep()", flag_values=values)
    flags.DEFINE_string("workdir", None, "where runs and report are kept", flag_values=values)


def _run(values: flags.FlagValues, sweep: list[tuple[dict[str, Any], Experiment]]) -> None:
    from experiments import train

    planned = plan(sweep)
    found = compare(
        planned,
        Path(values.workdir),
        title=f"Comparison: {values.config}",
        about=f"{_about(values.config.partition(':')[0])} {_shape(planned[0].experiment)}",
        command=shlex.join(["python", "-m", "experiments.compare", *sys.argv[1:]]),
        run=train.run,
    )
    failed = failures(variants(found.cells, {}))
    if failed:
        names = ", ".join(cell.name for cell in failed)
        raise LabError(f"{len(failed)} of {len(planned)} runs failed: {names}")


def _about(path: str) -> str:
    """The first line of a config's docstring."""
    docstring = ast.get_docstring(ast.parse(Path(path).read_text())) or ""
    return docstring.partition("\n")[0]


def _shape(x: Experiment) -> str:
    """What every millisecond, byte and FLOP of the report depends on."""
    return (
        f"Sequences of {x.posed.length}, batch {x.train.batch_size}; "
        f"{x.model.layers} layers of width {x.model.width} with {x.model.heads} heads."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, load=read_sweep, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
