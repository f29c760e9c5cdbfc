"""What a comparison found: cells, one for each variant and seed, and the variants they make up."""

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.records import is_number
from experiments.report.against import Against, corrected, tested
from experiments.report.stats import Score, interval


@dataclasses.dataclass(frozen=True)
class Cell:
    """One (variant, seed): `result` is what training gave, None if it failed with `error`."""

    name: str
    variant: str
    seed: int
    config: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    metrics: tuple[dict[str, Any], ...] = ()
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # how it was made fair
    machine: str = ""  # that it was trained on
    code: dict[str, str] = dataclasses.field(default_factory=dict)  # by which: commit and versions
    own: str = ""  # its variant in its own comparison, where a report calls that otherwise

    @functools.cached_property
    def scores(self) -> dict[str, Score]:
        """Of each split that its result tells of."""
        found = self.result or {}
        return {split: Score.of(found[split]) for split in ("validation", "test") if split in found}

    @property
    def slices(self) -> dict[str, float]:
        """The test accuracy of each."""
        return at(self.result, "test.slices") or {}


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    cells: tuple[Cell, ...]
    cost: dict[str, float | None]
    against: Against | None = None  # the first variant, of its own comparison

    def results(self, key: str) -> list[float]:
        """One number for each seed that finished; 'test.accuracy' looks inside `test`."""
        found = [at(cell.result, key) for cell in self.cells if cell.result]
        return [x for x in found if x is not None and math.isfinite(x)]

    def mean(self, key: str) -> float | None:
        values = self.results(key)
        return statistics.fmean(values) if values else None

    def interval(self, split: str) -> tuple[float, float | None] | None:
        """Of the accuracy, in percent; None where no seed finished."""
        if not (scores := [cell.scores[split] for cell in self.cells if split in cell.scores]):
            return None
        mean, half = interval(scores)
        return 100 * mean, half and 100 * half


def at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def together(several: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Values of several, by a label: what is not the same for all that have any is named after
    those that have it."""
    several = {label: one for label, one in several.items() if one}
    found = {}
    for one in several.values():
        for name, value in one.items():
            own = [label for label, x in several.items() if name in x and x[name] == value]
            found[name if len(own) == len(several) else f"{name} ({', '.join(own)})"] = value
    return found


def variants(
    cells: Sequence[Cell],
    costs: dict[str, dict[str, float | None]],
    firsts: Mapping[str, str] | None = None,
) -> list[Variant]:
    """Cells by variant, in the order in which the variants first come. `firsts` names those that
    variants are compared with, by default the first of the same task."""
    by_name, found, own = _by_variant(cells), {}, compared_with(cells, firsts)
    for names in by_task(cells).values():
        score = lambda name: {c.seed: c.scores["test"] for c in by_name[name] if c.result}
        uncorrected = {}
        for first in dict.fromkeys(own[name] for name in names):
            compared = [first, *(x for x in names if own[x] == first != x)]
            uncorrected |= tested({name: score(name) for name in compared})
        found |= corrected(uncorrected)  # for all of a task
    return [
        Variant(name, tuple(own), costs.get(name, {}), found.get(name))
        for name, own in by_name.items()
    ]


def compared_with(cells: Sequence[Cell], firsts: Mapping[str, str] | None = None) -> dict[str, str]:
    """By variant what `variants` compares it with, the first with itself."""
    tasks = by_task(cells).values()
    return {name: (firsts or {}).get(name, names[0]) for names in tasks for name in names}


def _by_variant(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """In the order in which the variants first come."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.variant, []).append(cell)
    return found


def by_task(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """The variants that are asked the same questions."""
    found: dict[str, list[str]] = {}
    for name, own in _by_variant(cells).items():
        config = settings(own)
        asked = [config.get(key) for key in ("task", "objective", "mask_rate")]
        found.setdefault(json.dumps(asked, sort_keys=True), []).append(name)
    return found


def settings(cells: Sequence[Cell]) -> dict[str, Any]:
    """Those of one variant, as a run that finished has them: of others they may be damaged."""
    done = [cell for cell in cells if cell.result]
    return next((cell.config for cell in (*done, *cells) if cell.config), {})


MOST = 120  # points in a curve; more are averaged in groups


def curves(variant: Variant, key: str, scale: float) -> list[tuple[list[float], list[float]]]:
    """(steps, scaled values) of each seed that finished, or if none did of each that began."""
    cells = [cell for cell in variant.cells if cell.result] or variant.cells
    runs = [points for cell in cells if (points := _points(cell, key, scale))]
    # the same for all seeds, of which one may have passed over a step that others have
    steps = sorted({t for points in runs for t in points})
    size = -(-len(steps) // MOST) or 1
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    found = []
    for points in runs:
        there = [(group, [points[t] for t in group if t in points]) for group in groups]
        means = [(statistics.fmean(t), statistics.fmean(x)) for t, x in there if x]
        found.append(tuple(map(list, zip(*means))))
    return found


def _points(cell: Cell, key: str, scale: float) -> dict[int, float]:
    """The scaled value at each step that has one."""
    values = {record["step"]: at(record, key) for record in cell.metrics}
    return {t: scale * x for t, x in values.items() if is_number(x)}


def failures(rows: Sequence[Variant]) -> list[Cell]:
    return [cell for row in rows for cell in row.cells if cell.error is not None]


def outcome(error: str) -> str:
    """What became of a run without a result, for a table: one that is unfinished has not failed."""
    return summary(error) if is_unfinished(error) else f"failed: {summary(error)}"


def is_unfinished(error: str) -> bool:
    return error.startswith("unfinished: ")


def summary(error: str) -> str:
    """The message of an error on one line, for a table, without its traceback."""
    return " ".join(error.strip().partition("\n\n")[0].split()) or "no message"
