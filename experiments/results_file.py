"""The files of a comparison itself, beyond those of its runs; people may have edited them."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic_core import PydanticCustomError

from experiments.errors import RunDirectoryError
from experiments.records import is_number
from experiments.rundir import read_json

T = TypeVar("T")
MEND = "correct it, or remove the file to do without it"


def _number(x: Any) -> Any:
    if not is_number(x):
        raise ValueError("expected a finite number")
    return x


def _costs(found: dict[str, Any]) -> dict[str, Any]:
    """None where it was not measured, words for what a count leaves out."""
    for name, x in found.items():
        words = name.endswith("_without")
        if not (isinstance(x, str) if words else x is None or (is_number(x) and x >= 0)):
            what = f"{name}: expected {'words' if words else 'a finite number of at least 0'}"
            raise PydanticCustomError("cost", "{what}", {"what": what, "got": x})
    return found


# not unions, whose mistakes are named for each kind
Number = Annotated[Any, pydantic.AfterValidator(_number)]
OfVariant = Annotated[dict[str, Any], pydantic.AfterValidator(_costs)]


@dataclasses.dataclass(frozen=True)
class Named:
    """A cell of results.json."""

    name: str
    variant: str
    own: str = ""
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Said:
    """results.json, as far as a report repeats it."""

    title: str = ""
    about: str = ""
    command: str = ""
    dates: str = ""
    cells: tuple[Named, ...] = ()
    baselines: dict[str, Number] = dataclasses.field(default_factory=dict)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Costs:
    """costs.json."""

    costs: dict[str, OfVariant] = dataclasses.field(default_factory=dict)


def read(path: Path, kind: type[T]) -> T | None:
    """The object in a file as one of these, other fields left out; None if there is none.
    Raises RunDirectoryError if it is damaged, naming the first field that is of another kind."""
    try:
        if (found := read_json(path)) is None:
            return None
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{error}\n  {MEND}") from None
    try:
        # as JSON, for there pydantic's strict mode takes a dict for a dataclass; in UTF-8, which
        # a path in it may not be
        text = json.dumps(found, ensure_ascii=False).encode(errors="replace")
        return pydantic.TypeAdapter(kind).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        got = first.get("ctx", {}).get("got", first["input"])
        what = f"{said}, got {str(got)[:40]!r}"
        raise RunDirectoryError(f"{path}: {name}: {what}\n  {MEND}") from None
