"""The rows of a benchmark as tables, one for each shape and mode."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from experiments.report.table import number

Row = dict[str, Any]
OURS, PLAIN, COPY = "attn", "plain", "copy"
# a key alone would be taken for the library's kernel, which needs a GPU
READ_AS = {"fla": "fla, naive reference"}


def label(contender: str) -> str:
    """As it is printed."""
    return READ_AS.get(contender, contender)


@dataclasses.dataclass(frozen=True)
class Column:
    """`text` takes a row and the rows of its group; a column without any text is left out."""

    heading: str
    text: Callable[[Row, Sequence[Row]], str]
    short: bool = False  # fits a terminal


def _value(heading: str, key: str, per: float = 1, short: bool = False) -> Column:
    def text(row: Row, _: Sequence[Row]) -> str:
        return "" if row.get(key) is None else number(row[key] / per)

    return Column(heading, text, short)


def ratio(row: Row, rows: Sequence[Row], base: str) -> float | None:
    """The time of `base` in the same turns, divided by the row's."""
    found = next((r for r in rows if r["contender"] == base and not r["why"]), None)
    return found["minimum"] / row["minimum"] if found and found is not row else None


def told_apart(a: Row, b: Row) -> bool:
    """Whether half of the rounds of the one of the lesser minimum lie below half of the other's."""
    less, more = sorted((a, b), key=lambda row: row["minimum"])
    return less["high"] < more["low"]


def _against_ours(row: Row, rows: Sequence[Row]) -> str:
    found = ratio(row, rows, OURS)
    return "" if found is None or row["contender"] == COPY else number(found)


def _against_plain(row: Row, rows: Sequence[Row]) -> str:
    found = ratio(row, rows, PLAIN)
    return "" if found is None else number(1 / found)


def _error(row: Row, _: Sequence[Row]) -> str:
    if row["contender"] == COPY:
        return ""  # a copy has no result
    return "unjudged" if row.get("error") is None else number(row["error"])


def _runs(row: Row, _: Sequence[Row]) -> str:
    return " ".join(x for x in (row.get("implementation"), row.get("blocks")) if x)


COLUMNS = (
    _value("min ms", "minimum", short=True),
    _value("median ms", "median", short=True),
    Column("half within", lambda row, _: f"{number(row['low'])}..{number(row['high'])}"),
    Column("attn / it", _against_ours, short=True),
    Column("x plain", _against_plain, short=True),
    _value("% of peak", "peak_share", 0.01, short=True),
    _value("% of copy", "copy_share", 0.01, short=True),
    _value("GB/s", "bytes_per_second", 1e9),
    _value("temporary MB", "temporary_bytes", 1e6, short=True),
    _value("peak MB", "peak_bytes", 1e6),
    _value("GFLOP", "flops", 1e9),
    _value("compile s", "compile_seconds"),
    Column("error / allowed", _error),
    Column("runs", _runs),
)


def configuration(row: Row) -> str:
    heads = f"{row['heads']}/{row['kv_heads']}"
    return f"{row['dtype']}, heads {heads}, width {row['width']}"


def title(row: Row) -> str:
    return f"T = {row['T']:,}, {row['mode']}, batch {row['batch']}, {configuration(row)}"


def groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows that took turns."""
    for _, group in itertools.groupby(rows, title):
        yield list(group)


def configurations(rows: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(map(configuration, rows))
    return {name: [r for r in rows if configuration(r) == name] for name in names}


def details(rows: Sequence[Row], short: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of one group; a row that was not timed has its name and why."""
    columns = [c for c in COLUMNS if c.short or not short]
    texts = [[c.text(r, rows) for c in columns] if not r["why"] else [] for r in rows]
    used = [n for n in range(len(columns)) if any(t[n] for t in texts if t)]
    name = lambda row: label(row["contender"]) + ("*" if row["mark"] else "")
    return (
        ["contender", *(columns[n].heading for n in used)],
        [
            [name(r), *(t[n] or "—" for n in used)] if t else [label(r["contender"]), r["why"]]
            for r, t in zip(rows, texts)
        ],
    )


def is_bad(row: Row) -> bool:
    """Whether it is an error, not merely a contender that cannot take part."""
    return bool(row["why"]) and not row["why"].startswith("skipped")


def marks(rows: Sequence[Row]) -> list[str]:
    return [f"* {label(r['contender'])} is {r['mark']}" for r in rows if r["mark"]]


def terminal(heading: str, rows: Sequence[Row]) -> Table:
    """One group; what is wrong in red."""
    table = Table(title=heading, title_justify="left", caption_justify="left")
    headings, texts = details(rows, short=True)
    for n, name in enumerate(headings):
        table.add_column(name, justify="right" if n else "left", overflow="fold")
    notes = Text()
    for row, cells in zip(rows, texts):
        if row["why"]:
            notes.append(
                f"{label(row['contender'])}: {row['why']}\n", "red" if is_bad(row) else "dim"
            )
        else:
            table.add_row(*cells)
    for mark in marks(rows):
        notes.append(f"{mark}\n", "yellow")
    table.caption = notes
    return table
