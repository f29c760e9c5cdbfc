"""The files that a comparison leaves: one self-contained report.html, and table.md, results.csv,
results.json and figures/ with the same in them."""

import dataclasses
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.records import write_json
from experiments.report import plots
from experiments.report.data import Cell, failures, flat, variants
from experiments.report.page import facts, page, picture, words
from experiments.report.pictures import Captioned, pictures
from experiments.report.sight import ATTENDING, Sight, attending, is_sight
from experiments.report.sortable import hypertext
from experiments.report.table import comma_separated, markdown


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


def write(comparison: Comparison, workdir: Path) -> Path:
    """Write the files; the path of report.html."""
    rows = variants(comparison.cells, comparison.costs)
    foot = f"{comparison.command}\n\n{comparison.dates}; {_machine(comparison.environment)}\n"
    table = markdown(rows, comparison.baselines)
    (workdir / "table.md").write_text(f"{table}\n    {foot}")
    (workdir / "results.csv").write_text(comma_separated(rows))
    write_json(workdir / "results.json", _numbers(comparison))
    drawn = [*pictures(rows, comparison.baselines), *attending(comparison.sights)]
    (workdir / "figures").mkdir(exist_ok=True)
    for drawing, _ in drawn:
        drawing.save(workdir / "figures")
    path = workdir / "report.html"
    path.write_text(render(comparison, drawn))
    return path


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """All but the curves, which stay in each cell's metrics.jsonl."""
    numbers = dataclasses.asdict(comparison)
    for cell in numbers["cells"]:
        del cell["metrics"]
    del numbers["sights"]
    return numbers


def render(comparison: Comparison, drawn: Sequence[Captioned]) -> str:
    """The HTML document, with these pictures of it."""
    rows = variants(comparison.cells, comparison.costs)
    looks = plots.looks([row.name for row in rows])
    shown = "".join(picture(x.svg, text) for x, text in drawn if not is_sight(x))
    sections = [
        f"<h1>{html.escape(comparison.title)}</h1>",
        f"<p>{html.escape(comparison.about)}</p>" if comparison.about else "",
        f'<p class="soft">{html.escape(_scope(comparison))}</p>',
        "<h2>Results</h2>",
        hypertext(rows, comparison.baselines, looks),
        "<h2>Pictures</h2>",
        f'<div class="figures">{shown}</div>',
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
    count = lambda n, what: f"{n} {what}{'' if n == 1 else 's'}"
    scope = f"{count(len(names), 'variant')}, {count(len(seeds), 'seed')}: "
    return scope + f"{done} of {count(len(cells), 'run')} finished. {comparison.dates}."


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
    """Each cell's configuration: first what differs from the first cell, the rest on demand."""
    first = flat(cells[0].config)
    yield f'<p class="soft">Beside each, what differs from {html.escape(cells[0].name)}.</p>'
    for cell in cells:
        own = flat(cell.config)
        changed = [f"{k} = {v}" for k, v in own.items() if k not in first or first[k] != v]
        name, what = html.escape(cell.name), html.escape(", ".join(changed))
        full = html.escape(json.dumps(cell.config, indent=1))
        yield f"<details><summary><b>{name}</b> {what}</summary><pre>{full}</pre></details>"


def _machine(environment: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in flat(environment).items() if v)
