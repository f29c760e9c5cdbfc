"""One line for each mistake pydantic finds: where, what was expected, what came, what is near."""

import contextlib
import dataclasses
import difflib
import itertools
from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

from experiments.config import TASKS, TOKEN_MIXERS, Experiment
from experiments.errors import nearest
from experiments.redact import redacted

Path = Sequence[str | int]
SECTIONS = ((), ("task",), ("model",), ("model", "attention"), ("optimizer",), ("train",))


def describe(details: ErrorDetails, values: Any) -> list[str]:
    """The mistake in lines that start with a field's dotted name."""
    path, value = _path(details["loc"]), details["input"]
    name = ".".join(map(str, path)) or "the configuration"
    got = shorten(repr(value))
    match details["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return [f"{name}: unknown field{_nearest_field(path, values)}"]
        case "missing":
            return [f"{name}: expected a value, got none"]
        case "union_tag_invalid" | "union_tag_not_found":
            kind, table = ("task", TASKS) if path[0] == "task" else ("mechanism", TOKEN_MIXERS)
            key = value.get("name") if isinstance(value, dict) else None
            if not isinstance(key, str):
                return [f"{name}: expected the name and fields of a {kind}, got {got}"]
            return [f"{name}.name: unknown {kind} {shorten(repr(key))}{nearest(key, table)}"]
        case "literal_error":
            valid = details["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
            expected = f"should be {' or '.join(valid)}, got {got}"
            return [f"{name}: {expected}{nearest(value, valid)}"]
        case "value_error":
            lines = str(details["ctx"]["error"]).split("\n")
            if not path:
                return lines
            # A record's own check names the field at the start of each line.
            return [f"{name}{'.' if _named(line, details) else ': '}{line}" for line in lines]
    return [f"{name}: {details['msg'].removeprefix('Input ')}, got {got}"]


def culprits(details: ErrorDetails) -> list[tuple[str | int, ...]]:
    """What to remove to find further mistakes: the wrong field, or those a record names."""
    path = _path(details["loc"])
    if details["type"] == "value_error" and isinstance(details["input"], dict):
        lines = str(details["ctx"]["error"]).split("\n")
        return [(*path, name) for line in lines if (name := _named(line, details))]
    return [path]


def _named(line: str, details: ErrorDetails) -> str | None:
    name, colon, _ = line.partition(":")
    return name if colon and name.isidentifier() and isinstance(details["input"], dict) else None


def one_each(found: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """One mistake for each place: where every member of a union refuses, that of the names."""
    kept: dict[tuple, ErrorDetails] = {}
    for details in found:
        path = tuple(_path(details["loc"]))
        if path not in kept or details["type"] == "literal_error":
            kept[path] = details
    return [*kept.values()]


def take_out(values: Any, path: Path) -> bool:
    """Removes the field at `path`; False if that is not there."""
    *section, name = path or [None]
    record = at(values, section)
    found = isinstance(record, dict) and name in record
    if found:
        del record[name]
    return found


def at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def shorten(text: str, most: int = 80) -> str:
    """The text, or its beginning, without secrets: half of one might not be recognised."""
    text = redacted(text[: 100 * most])
    return text if len(text) <= most else text[: most - 3] + "..."


def _path(loc: Path) -> tuple[str | int, ...]:
    """Where in the plain values: pydantic's location without the names of union members."""
    kinds = ("int", "float", "range", "list of values")
    member = lambda part: part in kinds or str(part).startswith(("literal[", "tuple["))
    loc = tuple(part for part in loc if not member(part) and part != "[key]")
    # a list is one value of its field
    field = lambda rest: itertools.takewhile(lambda part: not isinstance(part, int), rest)
    match loc:
        case ("task", _, *rest):
            return ("task", *rest)
        case ("model", "attention", _, int(layer)):
            return ("model", "attention", layer)
        case ("model", "attention", _, int(layer), _, *rest):
            return ("model", "attention", layer, *rest)
        case ("model", "attention", _) | ("model", "attention", _, _):
            return ("model", "attention")
        case ("model", "attention", _, _, *rest):
            return ("model", "attention", *field(rest))
        case ("model", "cross", _, *rest):
            return ("model", "cross", *field(rest))
    return tuple(loc)


def _nearest_field(path: Path, values: Any) -> str:
    *section, name = path
    here = _fields(section, values)
    if not difflib.get_close_matches(str(name), here, n=1):
        # Perhaps the right name in the wrong section: `layers` for `model.layers`.
        for other in SECTIONS:
            if close := difflib.get_close_matches(str(name), _fields(other, values), 1, 0.8):
                return f"; did you mean {'.'.join([*other, close[0]])!r}?"
    return nearest(name, here)


def _fields(section: Path, values: Any) -> list[str]:
    """Names that are valid in a section; none if the section itself is wrong."""
    cls: Any = Experiment
    if section[:1] == ["search"]:
        from experiments.fairness import Range  # which imports this module

        return [field.name for field in dataclasses.fields(Range)]
    with contextlib.suppress(KeyError, TypeError, IndexError):
        for depth, part in enumerate(section):
            record = at(values, section[: depth + 1])
            if part == "task":
                cls = TASKS[record["name"]]
            elif part in ("attention", "cross") or isinstance(part, int):
                cls = TOKEN_MIXERS[record["name"]] if isinstance(record, dict) else None
            else:
                cls = cls.__dataclass_fields__[part].type
        return [field.name for field in dataclasses.fields(cls)]
    return []
