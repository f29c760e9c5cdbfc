"""Heat maps of test accuracy: a row for each variant or length, a column for each slice."""

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from experiments.report.data import Variant, at, settings
from experiments.report.plots import Drawing, drawn, figure

Row = dict[str, float]  # test accuracy, %, by slice
# in a variant's name; a mechanism may have a length of its own, by which the task's has its section
LENGTH = r", (task\.)?length=\d+|(?<![\w.])(task\.)?length=\d+,? ?"


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    rows: dict[str, Row]


def panels(rows: Sequence[Variant]) -> list[Panel]:
    """One panel with a row for each variant; where only the task's length sets some apart, a panel
    for each of those, with a row for each length. [] if no task has more than one slice.
    Of variants whose settings are all alike, as of several machines, each is a row."""
    scored = [(row, _means(row)) for row in rows]
    scored = [(row, means) for row, means in scored if means]
    if not scored or max(len(means) for _, means in scored) < 2:
        return []
    groups: dict[str, list[tuple[Variant, Row]]] = {}
    for row, means in scored:
        groups.setdefault(_but_for_length(row), []).append((row, means))
    by_length = lambda group: len({_length(row) for row, _ in group}) == len(group)
    if len(groups) == len(scored) or not all(map(by_length, groups.values())):
        return [Panel("", {row.name: means for row, means in scored})]
    return [
        Panel(
            re.sub(LENGTH, "", group[0][0].name).strip(),
            {f"T = {_length(row)}": means for row, means in sorted(group, key=_by_length)},
        )
        for group in groups.values()
    ]


def _means(row: Variant) -> Row:
    """Over seeds, of slices that every finished seed has."""
    found = [cell.slices for cell in row.cells if cell.result]
    names = [name for name in (found[0] if found else {}) if all(name in x for x in found)]
    return {name: 100 * statistics.fmean(x[name] for x in found) for name in names}


def _length(row: Variant) -> int | None:
    return at(settings(row.cells), "task.length")


def _by_length(one: tuple[Variant, Row]) -> int:
    return _length(one[0]) or 0


def _but_for_length(row: Variant) -> str:
    """Equal for variants that differ in their length and seed only."""
    config = settings(row.cells)
    task = config.get("task")
    task = {k: v for k, v in task.items() if k != "length"} if isinstance(task, dict) else task
    return json.dumps({**config, "task": task, "seed": 0}, sort_keys=True)


def heat(panels: Sequence[Panel]) -> Drawing:
    """The panels below each other, on one scale from 0 to 100%."""
    names = list(dict.fromkeys(name for p in panels for row in p.rows.values() for name in row))
    shown, titles = [briefs([*p.rows]) for p in panels], briefs([p.title for p in panels])
    left = 0.068 * max(len(label) for labels in shown for label in labels) + 0.2
    heights = [0.24 * len(p.rows) + 0.3 * bool(p.title) for p in panels]
    wide = max(0.5, 0.068 * max(map(len, names)) if len(names) < 7 else 0.5)
    with figure(max(5.2, left + wide * len(names) + 0.3), sum(heights) + 0.8) as fig:
        grid = fig.subplots(
            len(panels), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights}
        )
        for ax, panel, title, labels in zip(grid.flat, panels, titles, shown):
            values = [[row.get(n, np.nan) for n in names] for row in panel.rows.values()]
            _cells(ax, np.array(values))
            ax.set_yticks(np.arange(len(labels)) + 0.5, labels)
            ax.set_title(title, fontsize=9, pad=3)
        turned = {"rotation": 40, "ha": "right"} if len(names) >= 7 else {}
        ax.set_xticks(np.arange(len(names)) + 0.5, names, **turned)
        return drawn(fig, "slices")


def _cells(ax, values: Float[np.ndarray, "rows slices"]) -> None:
    """Cividis: read alike by those who see few colours. Ink that stands out on each cell."""
    ax.pcolormesh(values, cmap="cividis", vmin=0, vmax=100, edgecolors="none")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "#ffffff" if value < 55 else "#000000"
            place = {"ha": "center", "va": "center", "fontsize": 8}
            ax.text(j + 0.5, i + 0.5, f"{value:.1f}", color=ink, **place)
    ax.invert_yaxis()
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def briefs(names: Sequence[str]) -> list[str]:
    """`brief`, of all or, where two would be one, of none."""
    short = [*map(brief, names)]
    return short if len({*short}) == len({*names}) else [*names]


def brief(name: str, most: int = 34) -> str:
    """A long name without its middle."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"
