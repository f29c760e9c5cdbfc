"""What a task, a mechanism or a mixer of the user's own must be, for configurations to name it."""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

from attn import MECHANISMS, Mechanism, Softmax
from attn.nn import MIXERS, Mixer
from experiments.config import TASKS, TOKEN_MIXERS
from experiments.errors import ConfigError
from experiments.mistakes import shorten
from experiments.tasks import Task

NAMED = (Mechanism, Mixer, Task)
PLAIN = (bool, int, float, str, type(None), tuple, object, Any)
POSSIBLE = "a number, a text, bool, None, Literal, or a tuple, union or frozen record of these"


def is_own(kind: type) -> bool:
    """Whether it is from outside this repository."""
    return not kind.__module__.startswith(("attn.", "experiments."))


def check_own() -> None:
    """Raises ConfigError with a line for each of them that cannot be made, or not from plain
    values."""
    tables = ((TASKS, (Task,)), (TOKEN_MIXERS, (Mechanism, Mixer)))
    entries = [(*entry, bases) for table, bases in tables for entry in table.items()]
    problems = [line for entry in entries for line in _wrong(*entry)]
    # a name in both tables would stand for the mixer, whatever the mechanism is
    twice = MECHANISMS.keys() & MIXERS.keys()
    clash = "expected a name of its own, as a mechanism and a mixer have it"
    if problems := [*problems, *(f"{name}: {clash}" for name in sorted(twice))]:
        raise ConfigError([*dict.fromkeys(problems)], "what was added to a table")


def _wrong(key: str, kind: Any, bases: tuple[type, ...]) -> Iterator[str]:
    if not (isinstance(kind, type) and issubclass(kind, bases)):
        expected = " or ".join(base.__name__ for base in bases)
        yield f"{key}: expected a subclass of {expected}, got {shorten(repr(kind))}"
        return
    if key == "softmax" and kind is not Softmax:
        what = "expected attn.Softmax, which configurations have by default"
        yield f"{key}: {what}; add yours by a name of its own"
    if not is_own(kind):
        return
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        yield f"{kind.__name__}: expected a method {' and a method '.join(missing)}, got none"
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:  # imported for type checkers alone, or within a function
        yield f"{kind.__name__}: expected types that are known where its file is read: {error}"
        return
    for field in dataclasses.fields(kind):
        if field.name == "name":
            yield f"{kind.__name__}.name: expected another name; a configuration has its key there"
        elif not _possible(hints[field.name]):
            got = inspect.formatannotation(hints[field.name])
            yield f"{kind.__name__}.{field.name}: expected {POSSIBLE}, got {got}"


def _possible(kind: Any) -> bool:
    """Whether JSON gives it back, and a jitted function may be called with it."""
    match typing.get_origin(kind):
        case typing.Annotated:
            return _possible(typing.get_args(kind)[0])
        case origin if origin in (Union, types.UnionType, tuple):
            return all(x is Ellipsis or _possible(x) for x in typing.get_args(kind))
        case origin if origin is Literal:
            return True
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        inner = all(_possible(hints[field.name]) for field in dataclasses.fields(kind))
        # one that is in a table is written by its key, which this field's type would not tell
        return inner and kind.__dataclass_params__.frozen and not issubclass(kind, NAMED)
    if hasattr(kind, "__supertype__"):  # NewType
        return _possible(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return issubclass(kind, int | str)
    return kind in PLAIN
