"""python -m experiments.compare --config=FILE[:ARG] --workdir=DIR [--config.a.b=value]

Trains every run that the file's `sweep()` yields, each in DIR/cells/<variant>-<seed>-<hash of its
configuration>; then writes DIR/report.html, table.md, results.csv, results.json and figures/. The
same command again continues: what is finished is never run again, what was interrupted goes on from
its last checkpoint, and what failed is tried again with --retry_failed. --processes=N runs N at a
time, each on its own cores and GPUs, with --slurm=timeout_min=600,slurm_partition=gpu as jobs of a
cluster (submitit); the same command elsewhere with the same DIR helps too.
--dry_run lists the runs and what they would take. Exit code 1 if any run failed.

Beside `sweep()` the file may say `match`, `budget` and `search`: see experiments/fairness.py.
"""

import ast
import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli, provenance, records, redact, seen
from experiments.alike import alike, missed, untimed
from experiments.cells import Cells, Run, begin, forget_failures
from experiments.config import Experiment
from experiments.config_file import Sweep, read_comparison
from experiments.errors import InUseError, LabError
from experiments.fairness import Fairness
from experiments.gathered import baselines, dates, on_machines, sights, without_run
from experiments.kept import Kept
from experiments.launch import Launch, define_launch, here, launch_of
from experiments.lock import held
from experiments.ready import ready
from experiments.report import Comparison, write
from experiments.report.costs import costs, or_told
from experiments.report.data import Cell, failures, is_unfinished, variants
from experiments.report.merge import apart
from experiments.report.table import terminal
from experiments.search import check_values, chosen, search
from experiments.sinks import define_sinks
from experiments.sources import sources
from experiments.stdout import Console
from experiments.sweep import Planned, plan

EQUAL = Fairness()  # as the config file has them
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
    rules: Fairness = EQUAL,
    launch: Launch = here,
    retry_failed: bool = False,
) -> Comparison | None:
    """Run what is not finished, then write the report; failures are cells with their error. None
    if another process still runs some: it will write the report. Raises DataError or ConfigError
    if no run's data can be read, or a run to start from has not ended, before the directory is
    claimed; LabError if what `launch` timed is missing, or if some failed and others still run."""
    console = Console()
    # before hours in which their files may be edited
    provenance.git_commit()
    sources(p.experiment for p in sweep)
    ready(workdir, sweep, rules)
    if untimed(sweep, rules, workdir):
        launch(alike, (sweep, rules, workdir), 1)  # on the cores that a run has
        if untimed(sweep, rules, workdir):  # here it would be on others
            raise LabError("what timed the steps was killed; the same command again goes on")
    planned = alike(sweep, rules, workdir)
    if rules.search:
        check_values(planned, rules)
    begin(workdir, sweep, rules)  # when every run is known to be possible
    if retry_failed:
        forget_failures(workdir)
    for line in missed(planned, rules):
        console.print(line, style="red", highlight=False, soft_wrap=True)
    finish = functools.partial(_finish, (run, command, _tell), launch)
    if rules.search:
        planned = chosen(planned, search(planned, rules, workdir, finish), rules)
    cells = Cells(workdir, tuple(planned))
    cells.note()
    if not finish(cells):
        console.print("the rest is run by another process, which will write the report")
        _refuse(cells.found(), elsewhere=True)
        return None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(workdir, "reporting"))
        except InUseError:
            console.print("another process is writing the report")
            _refuse(cells.found(), elsewhere=True)
            return None
        found = cells.found()
        shown = {p.variant: p.experiment for p, cell in zip(planned, found) if cell.result}
        comparison = Comparison(
            title=title,
            about=f"{about} {rules.told}".strip(),
            cells=on_machines(found, workdir / "cells"),
            costs=_costs(measure, shown, workdir / "costs.json", console),
            baselines=baselines(found),
            environment=without_run(records.environment()),
            command=command,
            dates=dates(workdir / "cells", found),
            sights=sights(found, workdir / "cells", seen.sight),
        )
        comparison = apart(comparison)
        path = write(comparison, workdir)
    console.print(terminal(comparison.rows()))
    if comparison.compared:
        console.print(comparison.compared, highlight=False, soft_wrap=True)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
    return comparison


def _finish(arguments: tuple, launch: Launch, cells: Cells) -> bool:
    """Runs what no other process holds; whether none is left in the hands of another."""
    if left := len(cells.unfinished()):
        launch(cells.work, arguments, left)
    return not cells.held_elsewhere()


def _tell(line: str) -> None:
    Console().print(line, style="bold", highlight=False)


def _costs(measure: Measure, chosen: dict[str, Experiment], cache: Path, console: Console) -> dict:
    """{} if it fails: a report without costs is better than none after hours of training."""
    with or_told("costs", []), console.status("measuring what each variant costs"):
        return measure(chosen, cache)
    return {}


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "a file with get_config() and sweep()", flag_values=values)
    flags.DEFINE_string("workdir", None, "where runs and report are kept", flag_values=values)
    define_launch(values)
    flags.DEFINE_boolean("dry_run", False, "list what would be run", flag_values=values)
    flags.DEFINE_boolean("retry_failed", False, "run again what failed", flag_values=values)
    define_sinks(values)


def _run(values: flags.FlagValues, comparison: tuple[Sweep, Fairness]) -> None:
    from experiments import train

    sweep, rules = comparison
    planned = plan(sweep)
    launch = launch_of(values)  # refused by a dry run too
    if values.dry_run:
        from experiments.dry_run import dry_run

        dry_run(planned, rules, Path(values.workdir), retry_failed=values.retry_failed)
        return
    kept = Kept()  # every process has its own: another's is a copy of this one, still empty
    found = compare(
        planned,
        Path(values.workdir),
        title=f"Comparison: {values.config}",
        about=f"{_about(values.config.partition(':')[0])} {_shape(planned)}",
        command=redact.started("experiments.compare"),
        run=functools.partial(train.run, progress=launch is here, sinks=values.sink, kept=kept),
        measure=functools.partial(costs, kept=kept),
        rules=rules,
        launch=launch,
        retry_failed=values.retry_failed,
    )
    if found:
        _refuse(found.cells)


def _refuse(found: Sequence[Cell], *, elsewhere: bool = False) -> None:
    """Raises LabError for runs that failed, or did not end: those may still run `elsewhere`."""
    without = failures(variants(found, {}))
    left = [cell.name for cell in without if is_unfinished(cell.error)]
    failed = [cell.name for cell in without if cell.name not in left]
    of = lambda some, what: f"{len(some)} of {len(found)} runs {what}: {', '.join(some)}"
    lines = [of(failed, "failed")] if failed else []
    if left and not elsewhere:
        lines.append(of(left, "did not end, and go on by the same command"))
    if lines:
        raise LabError("\n  ".join(lines))


def _about(path: str) -> str:
    """The first paragraph of a config's docstring."""
    docstring = ast.get_docstring(ast.parse(Path(path).read_bytes())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def _shape(planned: Sequence[Planned]) -> str:
    """What every millisecond, byte and FLOP of the report depends on, each value that a run has."""
    every = lambda of: sorted({of(p.experiment) for p in planned})
    lengths = every(lambda x: (x.posed.train_length, x.posed.length))
    layers, heads = every(lambda x: x.model.layers), every(lambda x: x.model.heads)
    batches, widths = every(lambda x: x.train.batch_size), every(lambda x: x.model.width)
    s = lambda numbers: "" if numbers == [1] else "s"
    return (
        f"Sequences of {_or([_length(*x) for x in lengths])}, batch {_or(batches)}; "
        f"{_or(layers)} layer{s(layers)} of width {_or(widths)} with {_or(heads)} head{s(heads)}."
    )


def _length(trained: int, held_out: int) -> str:
    longer = f" ({held_out} where held out, and for a state)" if held_out > trained else ""
    return f"{trained}{longer}"


def _or(values: Sequence[Any]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, load=read_comparison, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
