"""One HTML file that loads nothing: its style for screen, dark mode and paper, and sorting."""

import html
from collections.abc import Sequence

# the browser itself refuses whatever would go to the network
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
        --page: #fff; --stripe: #f6f8fa; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3a424c;
        --page: #0f1317; --stripe: #181d23; --bad: #ff8a7a; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb;
        --page: #fff; --stripe: #fff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem clamp(.8rem, 3vw, 2rem) 3rem; max-width: 82rem;
       background: var(--page); color: var(--ink); overflow-wrap: anywhere;
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p { max-width: 48rem; margin: .4rem 0; } .soft { color: var(--soft); font-size: .9rem; }
code, pre { font: .86em/1.45 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { white-space: pre-wrap; background: var(--stripe); padding: .6rem .8rem; margin: .4rem 0; }
.scroll { overflow-x: auto; overflow-wrap: normal; background: no-repeat right / 2.4rem 100% local
         linear-gradient(to left, var(--page) 50%, transparent), no-repeat right / .8rem 100%
         linear-gradient(to left, var(--line), transparent); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .32rem .6rem; text-align: right; white-space: nowrap; vertical-align: bottom;
         border-bottom: 1px solid var(--line); }
td { vertical-align: baseline; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
.words td { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 6.5rem; }
.words td:first-child { overflow-wrap: break-word; }
.scroll + .scroll { margin-top: .8rem; }
thead th { font-weight: 600; } thead .group th { color: var(--soft); font-weight: 400; }
thead .group th:not(:first-child) { text-align: left; border-left: 1px solid var(--line); }
th.unit, .unit { color: var(--soft); font-weight: 400; font-size: .82rem; }
.first { border-left: 1px solid var(--line); }
.sticky th:first-child, .sticky td:first-child { position: sticky; left: 0; background: var(--page);
         z-index: 1; }
th button { all: unset; cursor: pointer; text-align: inherit; }
th button:focus-visible { outline: 2px solid; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.swatch { display: inline-block; width: .75em; height: .75em; border-radius: 2px;
          margin-right: .45em; vertical-align: -.03em; print-color-adjust: exact;
          border: .16em solid; background: currentColor; }
.swatch.hollow { background: none; }
.bad { color: var(--bad); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
           gap: 1.4rem 2rem; align-items: start; }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; break-inside: avoid; max-width: 40rem; }
figure svg { display: block; width: 100%; height: auto; }
figure.wide { max-width: none; grid-column: 1 / -1; overflow-x: auto; }
figure.wide svg { min-width: 42rem; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .3rem; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif
           !important; }
details { margin: .3rem 0; } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: fit-content(16rem) minmax(0, 1fr); gap: .15rem 1rem;
     margin: .4rem 0; overflow-wrap: anywhere; }
dt { color: var(--soft); } dd { margin: 0; max-width: 48rem; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; } dd { margin: 0 0 .4rem 1rem; }
  .sticky th:first-child, .sticky td:first-child { min-width: 8rem; max-width: 9rem;
         white-space: normal; overflow-wrap: anywhere; }
}
@media screen and (min-width: 40rem) {
  .sticky.long th:first-child, .sticky.long td:first-child { min-width: 24rem; max-width: 24rem;
         white-space: normal; overflow-wrap: anywhere; }
}
@page { size: A4 landscape; margin: 10mm; }
@media print {
  :root { font-size: 11px; } body { max-width: none; padding: 0; font-size: 8.5pt; }
  p, dd { max-width: none; } h2 { margin-top: 1.4rem; }
  h1, h2, h3, h4, summary { break-after: avoid; } tr, figure, dt, dd { break-inside: avoid; }
  .scroll { overflow: visible; background: none; } table { font-size: 7pt; }
  th, td { padding: .2rem .3rem; }
  th, td { white-space: normal; } td[colspan] { overflow-wrap: anywhere; }
  .sticky th:first-child, .sticky td:first-child { position: static; }
  .figures { grid-template-columns: repeat(2, 1fr); }
  .figures.small { grid-template-columns: repeat(3, 1fr); }
  figure.wide svg { min-width: 0; }
  details:not(.more)::details-content { content-visibility: visible; }
  details pre { columns: 4; font-size: 6.5pt; }
}
"""

# numbers by data-value; rows without one stay last, whichever way the column is sorted
SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const th = button.closest("th"), body = th.closest("table").tBodies[0];
  const up = th.getAttribute("aria-sort") === "descending";
  for (const other of th.parentNode.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => row.cells[th.cellIndex].dataset.value ?? "";
  const number = row => value(row) === "" ? NaN : Number(value(row));
  const compare = (a, b) => {
    if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === "");
    const by = isNaN(number(a)) ? value(a).localeCompare(value(b)) : number(a) - number(b);
    return up ? by : -by;
  };
  body.append(...[...body.rows].sort(compare));
};
"""


def page(title: str, sections: Sequence[str]) -> str:
    """A whole document; `sections` are HTML, everything in them escaped already."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
            *sections,
            f"<script>{SCRIPT}</script></body></html>\n",
        ]
    )


def picture(svg: str, caption: str, *, wide: bool = False) -> str:
    kind = ' class="wide"' if wide else ""
    return f"<figure{kind}>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def facts(items: dict[str, object]) -> str:
    """A list of names and values."""
    rows = (f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in items.items())
    return f"<dl>{''.join(rows)}</dl>"


def words(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of text."""
    cell = lambda tag, x: f"<{tag}>{html.escape(str(x))}</{tag}>"
    head = "".join(cell("th", x) for x in heading)
    body = "".join(f"<tr>{''.join(cell('td', x) for x in row)}</tr>" for row in rows)
    table = f'<table class="words"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'
