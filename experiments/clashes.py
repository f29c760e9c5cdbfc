"""Settings made in two places of a comparison, of which one would be lost silently."""

from collections.abc import Iterable, Sequence

from experiments.fairness import Fairness
from experiments.mistakes import shorten

LABELS = ("name", "match")  # what a dict of sweep() says of its run, and is no field of it
RECORDS = ("task", "model.attention", "model.cross")  # which a name alone stands for


def wrong(cell: dict) -> list[str]:
    """A line for each mistake in a dict of sweep()."""
    if strange := [k for k in cell if not isinstance(k, str)]:
        return [f"expected names of fields, got {shorten(repr(k))}" for k in strange]
    text = lambda x: isinstance(x, str) and x.strip() and x.isprintable()
    lines = [
        f"{label}: expected a text of one line, got {shorten(repr(cell[label]))}"
        for label in LABELS
        if label in cell and not text(cell[label])
    ]
    fields = [record_of(name) for name in swept([cell])]
    return lines + [
        f"{one}: {x} comes before it in one run, and would be lost" for one, x in lost(fields)
    ]


def lost(fields: Sequence[str]) -> list[tuple[str, str]]:
    """Each record with a field in it that comes before it, and is set in vain."""
    return [(one, x) for n, one in enumerate(fields) for x in fields[:n] if _within(x, one)]


def settled_twice(cells: list[dict], rules: Fairness, overrides: Sequence[str]) -> list[str]:
    """A line for each setting of the rules that the sweep or the command line makes too."""
    told, asked = swept(cells), given(overrides)
    lines = clashes(rules.search, "sweep() sets", told)
    last = "comes before it, and would be lost; give it after it"
    lines += [f"search: {one}: {x} {last}" for one, x in lost([*rules.search])]
    lines += clashes(asked, "search tries", rules.search, "--config.")
    if rules.budget:
        lines += clashes(told, "the budget sets", ["train.steps"], "sweep(): ")
        lines += clashes(asked, "the budget sets", ["train.steps"], "--config.")
    of_variant = lambda cell: {k: v for k, v in cell.items() if k != "seed"}
    for cell in cells:
        if rules.match == "none":
            nothing = "there is no match of the file for it, so leave it out"
            lines += [f"sweep(): match={cell['match']!r}: {nothing}"] if "match" in cell else []
        elif of_variant(cell) != of_variant(cells[0]):  # which is not solved
            solved = cell.get("match", rules.solved)
            lines += clashes(swept([cell]), "match solves", [solved], "sweep(): ")
    return lines


def clashes(names: Iterable[str], who: str, others: Iterable[str], where: str = "") -> list[str]:
    """A line for each name that is one of the others, or within one, or contains one."""
    return [
        f"{where}{one}: {who} {other}; leave one of them out{_or(one, other)}"
        for one in names
        for other in others
        if _within(one, other) or _within(other, one)
    ]


def _or(a: str, b: str) -> str:
    """How a record and a field in it can both be set."""
    record, field = sorted((a, b), key=len)
    apart = record in RECORDS and field not in (record, f"{record}.name")
    return f", or give {record}.name alone" if apart else ""


def _within(a: str, b: str) -> bool:
    return a == b or a.startswith(f"{b}.")


def given(overrides: Sequence[str]) -> list[str]:
    """The fields on the command line."""
    return [x.partition("=")[0].partition(".")[2] for x in overrides]


def swept(cells: list[dict]) -> list[str]:
    """The fields that sweep() sets."""
    return list(dict.fromkeys(name for cell in cells for name in cell if name not in LABELS))


def record_of(name: str) -> str:
    """The record that a name such as `task.name` stands for, or the field itself."""
    section, _, field = name.rpartition(".")
    return section if section and field == "name" else name
