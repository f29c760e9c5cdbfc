"""results.csv: the numbers of every cell, for a spreadsheet or a data frame."""

import csv
import io
from collections.abc import Sequence

from experiments.report.data import Cell, Variant, at, outcome

RESULTS = (
    "test.accuracy",
    "validation.accuracy",
    "test.loss",
    "test.answers",
    "parameters",
    "steps_per_second",
    "best_step",
    "wall_seconds",
)


def comma_separated(rows: Sequence[Variant]) -> str:
    """One line for each cell, plain numbers in base units, with the test accuracy of each slice,
    where there are several; costs repeat within a variant."""
    keys = list(dict.fromkeys(key for row in rows for key in row.cost))
    slices = list(dict.fromkeys(x for row in rows for cell in row.cells for x in _slices(cell)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    headings = [*RESULTS, *(f"test.slices.{name}" for name in slices), *keys]
    writer.writerow(["variant", "seed", "cell", "status", *headings, "error"])
    for row in rows:
        for cell in row.cells:
            status = "finished" if cell.error is None else outcome(cell.error).partition(":")[0]
            numbers = [at(cell.result, key) for key in RESULTS]
            numbers += [_slices(cell).get(name) for name in slices]
            numbers += [row.cost.get(key) for key in keys]
            writer.writerow([cell.variant, cell.seed, cell.name, status, *numbers, cell.error])
    return out.getvalue()


def _slices(cell: Cell) -> dict[str, float]:
    """None where there is one, which is the whole test."""
    return cell.slices if len(cell.slices) > 1 else {}
