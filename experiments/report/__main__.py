"""python -m experiments.report --workdir=A [--workdir=B ...] --out=C

Writes the report of finished comparisons again, of several as one, without training anything:
C/report.html, table.md, results.csv, results.json and figures/. Runs of different machines are
never averaged together; what is unfinished, damaged or was edited by hand is named and left out.
A directory of experiments.benchmark among them adds a section: how time and memory scale, and where
contenders cross.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments import cli, seen
from experiments.errors import ConfigError
from experiments.gathered import gathered, sights
from experiments.lock import in_turn
from experiments.report import write
from experiments.report.benchmark import is_benchmark, read
from experiments.report.data import summary
from experiments.report.merge import merged
from experiments.stdout import tell


def _define(values: flags.FlagValues) -> None:
    help = "a directory of experiments.compare, or of experiments.benchmark; several may be given"
    flags.DEFINE_multi_string("workdir", None, help, flag_values=values)
    look = "also look at what variants attend to that were not looked at yet: seconds for each"
    flags.DEFINE_boolean("look", False, look, flag_values=values)
    flags.DEFINE_string("out", None, "the folder to write to", flag_values=values)


def _run(values: flags.FlagValues) -> None:
    folders, out = [Path(x) for x in values.workdir], Path(values.out)
    real = lambda x: Path(os.path.realpath(x))  # resolve raises for a link to itself
    if len({*map(real, folders)}) < len(folders):
        raise ConfigError(["--workdir: the same directory twice"])
    if missing := [x for x in folders if not x.is_dir()]:
        what = "expected a folder of finished runs, and there is no such folder"
        raise ConfigError([f"--workdir={x}: {what}" for x in missing])
    if out.exists() and not out.is_dir():
        raise ConfigError([f"--out: {out} is a file; name a folder"])
    if (out / "cells").is_dir():
        raise ConfigError([f"--out: {out} holds a comparison; name another folder"])
    for folder in folders:
        if real(out).is_relative_to(real(folder) / "cells"):
            raise ConfigError([f"--out: {out} is among the runs of {folder}; name another folder"])
    labels = _labels([*map(real, folders)])
    timed = {label: x for label, x in zip(labels, folders) if is_benchmark(x)}
    compared = {label: x for label, x in zip(labels, folders) if label not in timed}
    if not compared:
        pages = ", ".join(str(x / "benchmark.html") for x in folders)
        raise ConfigError([f"--workdir: expected a comparison; benchmarks have a page: {pages}"])
    if values.look:
        for folder in compared.values():
            sights(gathered(folder).cells, folder / "cells", seen.sight)
    found = merged({label: gathered(x) for label, x in compared.items()})
    found = dataclasses.replace(found, scaling={label: read(x) for label, x in timed.items()})
    for cell in found.cells:
        if cell.error is not None:
            tell(f"left out: {cell.name}: {summary(cell.error)}")
    out.mkdir(parents=True, exist_ok=True)
    with in_turn(out):  # the files of two reports would be one of each
        path = write(found, out)
    tell(f"report: {path}")


def _labels(folders: Sequence[Path]) -> list[str]:
    """Their names, or where two are called alike their paths below what all share."""
    names = [x.name for x in folders]
    if len({*names}) == len(names):
        return names
    above = os.path.commonpath([x.parent for x in folders])
    return [str(x.relative_to(above)) for x in folders]


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
