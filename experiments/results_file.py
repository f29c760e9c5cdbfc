"""What a comparison's own files say that its runs do not; people may have edited them."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic

from experiments.errors import RunDirectoryError
from experiments.records import read_object

T = TypeVar("T")


def _number(x: Any) -> Any:
    if not isinstance(x, int | float) or isinstance(x, bool) or not math.isfinite(x):
        raise ValueError("expected a finite number")
    return x


def _cost(x: Any) -> Any:
    """None where it was not measured, words for what a count leaves out."""
    return x if x is None or isinstance(x, str) else _number(x)


# not unions, whose mistakes are named for each kind
Number = Annotated[Any, pydantic.AfterValidator(_number)]
Cost = Annotated[Any, pydantic.AfterValidator(_cost)]


@dataclasses.dataclass(frozen=True)
class Named:
    """A cell of results.json."""

    name: str
    variant: str
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

    costs: dict[str, dict[str, Cost]] = dataclasses.field(default_factory=dict)


def read(path: Path, kind: type[T]) -> T | None:
    """The object in a file as one of these, other fields left out; None if it cannot be read.
    Raises RunDirectoryError naming the first field that is of another kind."""
    if (found := read_object(path)) is None:
        return None
    try:
        # as JSON, for there pydantic's strict mode takes a dict for a dataclass
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(found), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        what = f"{said}, got {str(first['input'])[:40]!r}"
        raise RunDirectoryError(
            f"{path}: {name}: {what}\n  correct it, or remove the file to do without it"
        ) from None
