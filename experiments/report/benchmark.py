"""The files that a benchmark leaves: benchmark.json, benchmark.md and benchmark.html."""

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.records import write_json
from experiments.report import plots
from experiments.report.page import facts, page, picture
from experiments.report.table import number

Row = dict[str, Any]
HEADINGS = (
    "contender",
    "min ms",
    "median ms",
    "half within",
    "attn / it",
    "temporary MB",
    "peak MB",
    "GFLOP",
    "compile s",
)
NOTE = (
    "float32; times of contenders that take turns in one process; `attn / it` is the ratio of "
    "minimum times, below 1 where attn is faster; temporary and peak bytes are of the compiled "
    "program (torch does not say). Nothing is timed before it equals a float64 oracle. Trust rows "
    "whose minimum and median are near: threads of torch and XLA that wait for each other suffer "
    "most from whatever else the machine does."
)


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """The texts of one row of a table for one length and mode."""
    if row["why"]:
        return [row["contender"], row["why"]]
    ours = next((r for r in rows if r["contender"] == "attn" and not r["why"]), None)
    ratio = ours["minimum"] / row["minimum"] if ours and ours is not row else None
    scaled = lambda key, per: None if row[key] is None else row[key] / per
    return [
        row["contender"],
        number(row["minimum"]),
        number(row["median"]),
        f"{number(row['low'])}..{number(row['high'])}",
        number(ratio),
        number(scaled("temporary_bytes", 1e6)),
        number(scaled("peak_bytes", 1e6)),
        number(scaled("flops", 1e9)),
        number(row["compile_seconds"]),
    ]


SHORT = (0, 1, 2, 4, 5, 8)  # the columns that fit a terminal


def terminal(title: str, rows: Sequence[Row]) -> Table:
    """One length and mode; what is wrong in red."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for n in SHORT:
        table.add_column(HEADINGS[n], justify="right" if n else "left", no_wrap=True)
    for row in rows:
        if not row["why"]:
            texts = cells(row, rows)
            table.add_row(*(texts[n] for n in SHORT))
    notes = Text()
    for row in rows:
        if row["why"]:
            style = "red" if row["why"].startswith("wrong") else "dim"
            notes.append(f"{row['contender']}: {row['why']}\n", style)
    table.caption = notes
    return table


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """p of the power law T^p through the points, by least squares in logarithms."""
    if len(lengths) < 2:
        return None
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def scaling(rows: Sequence[Row], mode: str, key: str, per: float = 1) -> dict[str, plots.Curve]:
    """contender -> (lengths, values) of what was measured."""
    series: dict[str, plots.Curve] = {}
    for row in rows:
        if row["mode"] == mode and not row["why"] and row[key]:
            steps, values = series.setdefault(row["contender"], ([], []))
            steps.append(row["T"])
            values.append(row[key] / per)
    return series


def exponents(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence on how the time of each contender grows."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        found = [
            f"{name} T^{p:.2f} ({min(steps):,}..{max(steps):,})"
            for name, (steps, values) in scaling(rows, mode, "minimum").items()
            if (p := exponent(steps, values)) is not None
        ]
        if found:
            yield f"Time of {mode} grows as: {', '.join(found)}."


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for T, mode in dict.fromkeys((row["T"], row["mode"]) for row in rows):
        yield f"T = {T:,}, {mode}", [r for r in rows if (r["T"], r["mode"]) == (T, mode)]


def write(found: dict[str, dict], environment: dict[str, Any], workdir: Path) -> Path:
    """Write the three files; the path of benchmark.html."""
    write_json(workdir / "benchmark.json", {"environment": environment, "suites": found})
    (workdir / "benchmark.md").write_text(_markdown(found, environment))
    path = workdir / "benchmark.html"
    path.write_text(_hypertext(found, environment))
    return path


def _markdown(found: dict[str, dict], environment: dict[str, Any]) -> str:
    out = ["# Benchmark", "", f"    {environment['command']}", "", NOTE, ""]
    out += [f"* {name}: {value}" for name, value in environment.items() if name != "command"]
    line = lambda texts: f"| {' | '.join(t.replace('|', '/') for t in texts)} |"
    for suite in found.values():
        out += ["", f"## {suite['title']}", ""]
        out += [suite["note"]] if "note" in suite else []
        for title, rows in _groups(suite.get("rows", [])):
            out += ["", f"### {title}", "", line(HEADINGS), line(["---"] * len(HEADINGS))]
            for row in rows:
                texts = cells(row, rows)
                out.append(line([*texts, *[""] * (len(HEADINGS) - len(texts))]))
        out += ["", *exponents(suite.get("rows", []))]
    return "\n".join([*out, ""])


def _hypertext(found: dict[str, dict], environment: dict[str, Any]) -> str:
    sections = ["<h1>Benchmark</h1>", f"<p>{html.escape(NOTE)}</p>"]
    for name, suite in found.items():
        rows = suite.get("rows", [])
        sections.append(f"<h2>{html.escape(suite['title'])}</h2>")
        if "note" in suite:
            sections.append(f"<p>{html.escape(suite['note'])}</p>")
        drawn = "".join(_pictures(name, rows))
        sections += [f'<div class="figures">{drawn}</div>'] if drawn else []
        sections += [f"<p>{html.escape(text)}</p>" for text in exponents(rows)]
        for title, group in _groups(rows):
            sections += [f"<h3>{html.escape(title)}</h3>", _table(group)]
    sections += ["<h2>How it was made</h2>", f"<pre>{html.escape(environment['command'])}</pre>"]
    return page("Benchmark", [*sections, facts(environment)])


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{html.escape(x)}</th>" for x in HEADINGS)
    body = ""
    for row in rows:
        name, *texts = map(html.escape, cells(row, rows))
        wrong = ' class="bad"' if row["why"].startswith("wrong") else ""
        wide = f' colspan="{len(HEADINGS) - 1}" style="text-align:left"' if row["why"] else ""
        body += f"<tr{wrong}><td>{name}</td>{''.join(f'<td{wide}>{x}</td>' for x in texts)}</tr>"
    table = f'<table class="sticky"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _pictures(name: str, rows: Sequence[Row]) -> Iterator[str]:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for key, per, label in (("minimum", 1, "ms"), ("temporary_bytes", 1e6, "temporary MB")):
            series = scaling(rows, mode, key, per)
            if series and max(map(len, (s for s, _ in series.values()))) > 1:
                style = plots.looks(list(dict.fromkeys(row["contender"] for row in rows)))
                code = f"{name}-{mode}-{key}".replace(" ", "").replace("+", "-")
                svg = plots.scaling(series, style, ylabel=f"{mode}, {label}", name=code)
                yield picture(svg, f"{label} of {mode} against length, both logarithmic.")
