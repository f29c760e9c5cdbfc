"""The files that a comparison leaves: one self-contained report.html, and table.md, results.csv,
results.json and figures/ with the same in them."""

import collections
import dataclasses
import html
import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.disk import write_json, write_text
from experiments.records import read_object
from experiments.report import benchmark, palette
from experiments.report.data import Cell, Variant, failures, variants
from experiments.report.page import facts, page, picture, words
from experiments.report.pictures import Captioned, pictures
from experiments.report.plots import drawn_files
from experiments.report.sight import ATTENDING, Sight, attending, is_sight
from experiments.report.sortable import hypertext
from experiments.report.spreadsheet import comma_separated
from experiments.report.table import markdown
from experiments.validation import flat
from experiments.words import plural


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All that a report shows. `costs` and `baselines` (accuracies) are numbers by name."""

    title: str
    about: str
    cells: tuple[Cell, ...]
    costs: dict[str, dict[str, float | None]]
    baselines: dict[str, float]
    environment: dict[str, Any]
    command: str
    dates: str
    sights: dict[str, Sight] = dataclasses.field(default_factory=dict)  # of variants
    # what benchmarks found, by a label: as in their benchmark.json
    scaling: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    # of several comparisons: the variant that each is compared with, where it is of its own
    firsts: dict[str, str] = dataclasses.field(default_factory=dict)
    compared: str = ""  # what is compared and timed with what, where that is not all with one

    def measured(self) -> dict[str, dict[str, float | None]]:
        """The costs, and how far each variant that was looked at is from softmax."""
        errors = {name: sight.error for name, sight in self.sights.items()}
        there = {name: {"softmax_error": x} for name, x in errors.items() if x is not None}
        return {name: self.costs.get(name, {}) | there.get(name, {}) for name in self.costs | there}

    def rows(self) -> list[Variant]:
        return variants(self.cells, self.measured(), self.firsts)


def write(comparison: Comparison, workdir: Path) -> Path:
    """Write the files; the path of report.html."""
    rows = comparison.rows()
    commands = textwrap.indent(comparison.command, "    ")
    foot = f"{commands}\n\n{comparison.dates}; {_machine(comparison.environment)}\n"
    for more in (comparison.compared, _several(comparison.cells, comparison.environment)):
        foot += f"\n{more}\n" if more else ""
    table = markdown(rows, comparison.baselines)
    write_text(workdir / "table.md", f"{table}\n{foot}")
    write_text(workdir / "results.csv", comma_separated(rows))
    drawn = [*pictures(rows, comparison.baselines), *attending(comparison.sights)]
    (workdir / "figures").mkdir(exist_ok=True)
    for drawing, _ in drawn:
        drawing.save(workdir / "figures")
    figures = [drawing.name for drawing, _ in drawn]
    _remove_drawn(workdir, figures)  # while they are listed: killed here, the next report does it
    write_json(workdir / "results.json", _numbers(comparison) | {"figures": figures})
    path = workdir / "report.html"
    write_text(path, render(comparison, drawn))
    return path


def _remove_drawn(workdir: Path, figures: Sequence[str]) -> None:
    """What an earlier report here drew and this one did not: it lists them, and nothing else is
    touched."""
    before = (read_object(workdir / "results.json") or {}).get("figures")
    files = lambda names: {x for n in names for x in drawn_files(workdir / "figures", str(n))}
    for path in files(before if isinstance(before, list) else ()) - files(figures):
        path.unlink(missing_ok=True)


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """All but the curves, which stay in each cell's metrics.jsonl."""
    # not by asdict, which copies all that is in them
    names = lambda x, but: [f.name for f in dataclasses.fields(x) if f.name != but]
    fields = lambda x, but: {name: getattr(x, name) for name in names(x, but)}
    cells = [fields(cell, "metrics") for cell in comparison.cells]
    errors = {name: sight.errors for name, sight in comparison.sights.items()}
    more = {"cells": cells, "costs": comparison.measured(), "softmax_errors": errors}
    return fields(comparison, "sights") | more


def render(comparison: Comparison, drawn: Sequence[Captioned]) -> str:
    """The HTML document, with these pictures of it."""
    rows = comparison.rows()
    looks = palette.looks([row.name for row in rows])
    shown = "".join(picture(x.svg, text, wide=x.wide) for x, text in drawn if not is_sight(x))
    told = f"{comparison.about}\n{comparison.compared}".strip().splitlines()
    sections = [
        f"<h1>{html.escape(comparison.title)}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in told),
        f'<p class="soft">{html.escape(_scope(comparison))}</p>',
        "<h2>Results</h2>",
        hypertext(rows, comparison.baselines, looks),
        f'<h2>Pictures</h2>\n<div class="figures">{shown}</div>' if shown else "",
        *_scaling(comparison),
        *_attending(comparison, drawn),
        *_failed(comparison),
        "<h2>How it was made</h2>",
        f"<pre>{html.escape(comparison.command)}</pre>",
        facts({"dates": comparison.dates, **flat(comparison.environment)}),
        "<h2>Cells</h2>",
        *_cells(comparison.cells),
    ]
    return page(comparison.title, [s for s in sections if s])


def _scope(comparison: Comparison) -> str:
    cells = comparison.cells
    done = sum(cell.result is not None for cell in cells)
    names, seeds = {c.variant for c in cells}, {c.seed for c in cells}
    scope = f"{plural(len(names), 'variant')}, {plural(len(seeds), 'seed')}: "
    scope += f"{done} of {plural(len(cells), 'run')} finished. {comparison.dates}."
    return f"{scope} {_several(cells, comparison.environment)}".strip()


def _several(cells: Sequence[Cell], environment: dict[str, Any]) -> str:
    """What code and data of the runs that finished were, where they are not the same for all, or
    not what the report names as its own: the same command later writes it again."""
    done = [cell.code for cell in cells if cell.result and cell.code]
    told = {name.rpartition(".")[2]: str(x) for name, x in flat(environment).items()}
    here = {name: x for name, x in told.items() if x}  # outside of git there is no commit
    several, other = [], []
    for name in dict.fromkeys(name for code in done for name in code):
        counts = collections.Counter(code[name] or "unknown" for code in done if name in code)
        each = " and ".join(f"{x} ({plural(n, 'run')})" for x, n in counts.items())
        if len(counts) > 1:
            several.append(f"{name} {each}")
        elif name in here and here[name] not in counts:
            other.append(f"{name} {each}")
    lines = {
        "Trained by several versions of the code or the data": several,
        "Trained by another version of the code than wrote this report": other,
    }
    return " ".join(f"{what}: {'; '.join(x)}." for what, x in lines.items() if x)


def _scaling(comparison: Comparison) -> Iterator[str]:
    known = [row.name for row in comparison.rows()]
    for n, (label, found) in enumerate(comparison.scaling.items()):
        environment = found["environment"]
        yield f"<h2>Scaling and crossovers: {html.escape(label)}</h2>"
        said = f"{environment.get('command', '')}; {_machine(environment.get('hardware') or {})}"
        yield f'<p class="soft">{html.escape(said)}</p>'
        yield from benchmark.sections(found["suites"], f"scaling-{n}-", known, level=3)


def _attending(comparison: Comparison, drawn: Sequence[Captioned]) -> Iterator[str]:
    if not comparison.sights:
        return
    yield "<h2>What each variant attends to</h2>"
    yield f'<p class="soft">{html.escape(ATTENDING)}</p>'
    shown = "".join(picture(x.svg, text) for x, text in drawn if is_sight(x))
    yield f'<div class="figures small">{shown}</div>'
    for name, sight in comparison.sights.items():
        if not sight.field.size:
            yield f'<p class="soft">{html.escape(f"{name}: {sight.about}")}</p>'


def _failed(comparison: Comparison) -> list[str]:
    cells = failures(variants(comparison.cells, {}))
    if not cells:
        return []
    rows = [(cell.variant, cell.seed, cell.error) for cell in cells]
    return ["<h2>Failures</h2>", words(("variant", "seed", "error"), rows)]


def _cells(cells: tuple[Cell, ...]) -> Iterator[str]:
    """Each cell's configuration: first what differs from the first cell, the rest on demand; on
    paper the first in full, and of more what differs."""
    first, count = flat(cells[0].config), collections.Counter(cell.name for cell in cells)
    # a run of several machines has one name on all of them
    on = lambda x: f" on {x.machine}" if count[x.name] > 1 and x.machine else ""
    names = [f"{cell.name}{on(cell)}" for cell in cells]
    yield f'<p class="soft">Beside each, what differs from {html.escape(names[0])}.</p>'
    for n, cell in enumerate(cells):
        own, kind = flat(cell.config), ' class="more"' if n else ""
        changed = [f"{k} = {v}" for k, v in own.items() if k not in first or first[k] != v]
        name, what = html.escape(names[n]), html.escape(", ".join(changed))
        full = html.escape(json.dumps(cell.config, indent=1))
        yield f"<details{kind}><summary><b>{name}</b> {what}</summary><pre>{full}</pre></details>"


def _machine(environment: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in flat(environment).items() if v)
