"""The table of a comparison as HTML that sorts by any column of numbers."""

import html
from collections.abc import Callable, Sequence

from experiments.report.data import Variant, failures, outcome
from experiments.report.page import facts
from experiments.report.palette import Look
from experiments.report.table import Column, notes, told

LONG = 60  # letters of a name: more are on several lines


def hypertext(rows: Sequence[Variant], baselines: dict[str, float], looks: dict[str, Look]) -> str:
    """The sortable table; failed cells and baselines below, where sorting leaves them."""
    columns = told(rows)
    groups = list(dict.fromkeys(c.group for c in columns))
    starts = [n == 0 or c.group != columns[n - 1].group for n, c in enumerate(columns)]
    edge = lambda n: ' class="first"' if starts[n] else ""
    spans = [(g, sum(c.group == g for c in columns)) for g in groups]
    head = "".join(f'<th colspan="{n}" scope="colgroup">{html.escape(g)}</th>' for g, n in spans)
    button = lambda s: f'<button type="button">{s}</button>'
    unit = lambda c: c.unit and f'<br><span class="unit">{html.escape(c.unit)}</span>'
    sorts = lambda c: any(c.value(row) is not None for row in rows)  # not by words, as of fairness
    named = lambda c: html.escape(c.heading) + unit(c)
    names = "".join(
        f'<th scope="col"{edge(n)}>{button(named(c)) if sorts(c) else named(c)}</th>'
        for n, c in enumerate(columns)
    )
    body = "".join(_row(row, looks[row.name], columns, edge) for row in rows)
    foot = ""
    for cell in failures(rows):
        what = f"{html.escape(cell.variant)}, seed {cell.seed}"
        why = html.escape(outcome(cell.error))
        foot += f'<tr class="bad"><th scope="row">{what}</th>'
        foot += f'<td colspan="{len(columns)}" style="text-align:left">{why}</td></tr>'
    for name, value in baselines.items():
        rest = f'<td colspan="{len(columns) - 2}"></td>'
        foot += f'<tr class="soft"><th scope="row">{html.escape(name)}</th>'
        foot += f'<td class="first"></td><td>{100 * value:.1f}</td>{rest}</tr>'
    # the names' column stays where it is: wider than the window it would hide all others
    kind = "sticky long" if max(len(row.name) for row in rows) > LONG else "sticky"
    return (
        f'<div class="scroll"><table class="{kind}"><thead>'
        f'<tr class="group"><th></th>{head}</tr>'
        f'<tr><th scope="col">{button("variant")}</th>{names}</tr></thead>'
        f"<tbody>{body}</tbody><tfoot>{foot}</tfoot></table></div>"
        f'<div class="soft">{facts(notes(columns))}</div>'
    )


def _row(row: Variant, look: Look, columns: Sequence[Column], edge: Callable[[int], str]) -> str:
    name = html.escape(row.name, quote=True)
    kind = "swatch" if look.dash == "-" else "swatch hollow"
    out = f'<td data-value="{name}"><span class="{kind}" style="color:{look.colour}"></span>'
    out += f"{name}</td>"
    for n, column in enumerate(columns):
        value = column.value(row)
        data = "" if value is None else f' data-value="{value!r}"'
        out += f"<td{edge(n)}{data}>{html.escape(column.text(row))}</td>"
    return f"<tr>{out}</tr>"
