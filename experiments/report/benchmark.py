"""The files that a benchmark leaves: benchmark.json, benchmark.md and benchmark.html."""

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.disk import write_json, write_text
from experiments.errors import RunDirectoryError
from experiments.records import read_object
from experiments.report import crossover
from experiments.report.measurements import (
    Row,
    configurations,
    details,
    groups,
    is_bad,
    marks,
    title,
)
from experiments.report.page import facts, page, words
from experiments.report.scaling import pictures
from experiments.report.summary import Summary, sharing, summary
from experiments.validation import flat

NOTES = {
    "times": "Contenders take turns in one process, each on inputs that rotate; compiling is never "
    "in a time. Trust rows whose minimum and median are near: threads of torch and XLA that wait "
    "for each other suffer most from whatever else the machine does.",
    "attn / it": "The ratio of minimum times, below 1 where attn is faster (`/ torch` "
    "in a summary).",
    "within noise": "Of two times at one length: half of the rounds of the one (`half within`) do "
    "not lie below half of the other's, ~ in a summary. Where curves cross is told by the other "
    "lengths.",
    "% of peak": "The matrix products that the visible pairs need (2 forward, 5 more backward) per "
    "second, against a float32 product on all cores in the same run; of mechanisms with states or "
    "blocks those that their forward pass makes, with backward 3 and 3.5 times as many.",
    "MB": "Of the compiled program, temporaries alone or with arguments and outputs; torch does "
    "not say.",
    "error / allowed": "The distance to a float64 oracle of the same inputs, at the timed shape, "
    "in units of what is allowed in that dtype: the worst of output, gradients and worst row, of "
    "the last batch row, all heads where a mechanism is held to its own definition (linearized, "
    "sparse), else the last key head. It is looked at before it is timed. Ours must be within 1; "
    "peers, which people use as they are, are timed up to 4, with a * beyond 1; what is further "
    "off is wrong, not timed. Lengths that an oracle cannot hold, which a suite names, are timed "
    "unjudged.",
    "heads": "Query heads / key heads. Keys and values are repeated for flax.linen, which cannot "
    "group heads.",
}
# what differs where times are a GPU's
ON_A_GPU = {
    "times": "Contenders take turns in one process, each on inputs that rotate; compiling is never "
    "in a time. On the GPU a turn is calls enqueued one after another, as many as take about 5 ms, "
    "and waited for at the end; decoding, whose calls are of 4 tokens, is waited for after each. "
    "What takes less than about 0.1 ms may be the time in which the host enqueues it.",
    "% of peak": "The matrix products that the visible pairs need (2 forward, 5 more backward) per "
    "second, against products of the row's own dtype in the same run, of float32 at the highest "
    "precision; of mechanisms with states or blocks those that their forward pass makes, with "
    "backward 3 and 3.5 times as many.",
    "precision": "Rows in float32 are at jax's highest precision of products, as torch's are by "
    "default; those of 16 bits are as jax has them by default.",
}
Suite = dict[str, Any]


def write(found: dict[str, Suite], environment: dict[str, Any], workdir: Path) -> Path:
    """Write the three files; the path of benchmark.html."""
    write_json(workdir / "benchmark.json", {"environment": environment, "suites": found})
    write_text(workdir / "benchmark.md", markdown(found, environment))
    path = workdir / "benchmark.html"
    write_text(path, _hypertext(found, environment))
    return path


def markdown(found: dict[str, Suite], environment: dict[str, Any]) -> str:
    """benchmark.md."""
    out = ["# Benchmark", "", f"    {environment['command']}", ""]
    out += [f"* {name}: {text}" for name, text in notes(environment).items()] + [""]
    out += [f"* {name}: {value}" for name, value in environment.items() if name != "command"]
    line = lambda texts: f"| {' | '.join(t.replace('|', '/') for t in texts)} |"
    table = lambda head, rows: [line(head), line(["---"] * len(head)), *map(line, rows), ""]
    for suite in found.values():
        out += ["", f"## {suite['title']}", "", suite.get("note", ""), ""]
        for name, rows in _sections(suite["rows"]):
            out += [f"### {name}", ""] if name else []
            if ratios := summary(rows):
                out += table(ratios.headings, ratios.cells)
            out += [f"* {text}" for text in _sentences(rows)] + [""]
            for group in groups(rows):
                head, texts = details(group)
                # of a row wider than its head, as where nothing was timed, the rest is not shown
                width = max(map(len, (head, *texts)))
                head, *texts = ([*t, *[""] * (width - len(t))] for t in (head, *texts))
                out += [f"#### {title(group[0])}", "", *table(head, texts)]
                out += [f"\\{text}" for text in marks(group)] + [""] * bool(marks(group))
    return "\n".join(out)


def notes(environment: dict[str, Any]) -> dict[str, str]:
    """How the numbers are to be read, by what they are of."""
    platform = environment.get("hardware", {}).get("platform")
    return NOTES | (ON_A_GPU if platform == "gpu" else {})


def _sentences(rows: Sequence[Row]) -> Iterator[str]:
    for mode, quantity, found in crossover.crossovers(rows):
        told = "; ".join(f"than {name}: {text}" for name, text in found.items())
        yield f"{mode}, {quantity}, attn {told}."
    yield from crossover.exponents(rows)
    yield from sharing(rows)


def _sections(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """(heading, rows): one for each configuration, or one in all where each has but one length."""
    several = configurations(rows)
    if all(len({row["T"] for row in some}) == 1 for some in several.values()):
        return [("" if len(several) > 1 else next(iter(several), ""), list(rows))]
    return list(several.items())


def _hypertext(found: dict[str, Suite], environment: dict[str, Any]) -> str:
    made = ["<h2>How it was made</h2>", f"<pre>{html.escape(environment['command'])}</pre>"]
    shown = [
        "<h1>Benchmark</h1>",
        facts(notes(environment)),
        *sections(found),
        *made,
        facts(flat(environment)),
    ]
    return page("Benchmark", shown)


def sections(
    found: dict[str, Suite], prefix: str = "", known: Sequence[str] = (), level: int = 2
) -> Iterator[str]:
    """HTML of each suite, with headings from this level on; figures are named by the `prefix`, and
    coloured after the `known` contenders."""
    heading = lambda n, text: f"<h{n}>{html.escape(text)}</h{n}>"
    for name, suite in found.items():
        rows = suite["rows"]
        yield heading(level, suite["title"])
        yield f"<p>{html.escape(suite.get('note', ''))}</p>"
        if drawn := "".join(pictures(f"{prefix}{name}", rows, known, suite.get("ours", ""))):
            yield f'<div class="figures">{drawn}</div>'
        for text, section in _sections(rows):
            if text:
                yield heading(level + 1, text)
            if ratios := summary(section):
                yield _ratios(ratios)
            yield from _crossover_table(section)
            for told in (*crossover.exponents(section), *sharing(section)):
                yield f'<p class="soft">{html.escape(told)}</p>'
            yield from map(_details, groups(section))


def is_benchmark(workdir: Path) -> bool:
    return (workdir / "benchmark.json").is_file() and not (workdir / "cells").is_dir()


def read(workdir: Path) -> dict[str, Any]:
    """What `write` left: {"environment", "suites"}. Raises RunDirectoryError if it is not that."""
    path = workdir / "benchmark.json"
    found = read_object(path) or {}
    try:
        markdown(found["suites"], found["environment"])
    except Exception as error:  # whatever stands there in place of rows
        why = f"{path} is not as experiments.benchmark wrote it: {error!r}; run it again"
        raise RunDirectoryError(why) from None
    return found


def _crossover_table(rows: Sequence[Row]) -> list[str]:
    found = crossover.crossovers(rows)
    peers = list(dict.fromkeys(name for _, _, told in found for name in told))
    texts = [[f"{mode}, {what}", *(told.get(p, "—") for p in peers)] for mode, what, told in found]
    return [words(["attn in", *(f"than {p}" for p in peers)], texts)] if found else []


def _details(rows: Sequence[Row]) -> str:
    # groups that hold an error are open: it should be seen
    head, texts = details(rows)
    table = _table(head, [_line(t, len(head), is_bad(r)) for t, r in zip(texts, rows)])
    table += "".join(f'<p class="soft">{html.escape(text)}</p>' for text in marks(rows))
    name = html.escape(title(rows[0]))
    state = " open" if any(map(is_bad, rows)) or rows[0]["mode"] == "decode" else ""
    return f"<details{state}><summary>{name}</summary>{table}</details>"


def _ratios(found: Summary) -> str:
    mark = lambda n, text, slow: f"<td{' class=bad' * (n in slow)}>{html.escape(text)}</td>"
    lines = (
        "".join(mark(n, x, s) for n, x in enumerate(r)) for r, s in zip(found.cells, found.slow)
    )
    return _table(found.headings, [f"<tr>{line}</tr>" for line in lines])


def _line(texts: Sequence[str], width: int, wrong: bool) -> str:
    """A row of a table; the last cell takes what is left of the width."""
    name, *others = map(html.escape, texts)
    wide = f' colspan="{width - 1}" style="text-align:left"' if len(texts) < width else ""
    cells = "".join(f"<td{wide}>{x}</td>" for x in others)
    return f"<tr{' class=bad' * wrong}><td>{name}</td>{cells}</tr>"


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    top = "".join(f"<th>{html.escape(x)}</th>" for x in head)
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="sticky">{body}</table></div>'
