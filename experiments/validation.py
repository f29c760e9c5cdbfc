"""Plain values to an Experiment and back; all mistakes are found at once."""

import dataclasses
import functools
import json
import re
from typing import Any

import numpy as np
import pydantic

from attn import Mechanism
from attn.nn import Mixer
from experiments import manifest, mistakes
from experiments.config import Experiment, name_of
from experiments.errors import SHOWN, ConfigError
from experiments.own import check_own
from experiments.tasks import Task


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """The experiment in JSON's types; `from_dict` of it gives an equal one."""
    return _plain(experiment)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        name = {"name": name_of(value)} if isinstance(value, Task | Mechanism | Mixer) else {}
        return name | {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def fingerprint(experiment: Experiment) -> str:
    """Sixteen hex digits: equal exactly when the experiments are."""
    return manifest.short(to_dict(experiment))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line for each field that differs, `model.layers: 2 there, 4 here`."""
    before, after = flat(old), flat(new)
    names = [n for n in {**before, **after} if before.get(n) != after.get(n)]
    show = lambda leaves, name: repr(leaves[name]) if name in leaves else "nothing"
    return [f"{n}: {show(before, n)} there, {show(after, n)} here" for n in names]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else None
        found |= {f"{prefix}{key}": value} if inner is None else inner
    return found


def plain(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """A copy `without_numpy`. Raises ConfigError as `as_json` does."""
    as_json(raw, where)  # refused before it is copied: what is within itself
    try:
        return without_numpy(raw)
    except RecursionError as error:  # json goes deeper than Python's functions may
        raise _not_plain(error, where) from None


def without_numpy(value: Any) -> Any:
    """A copy with Python's numbers in place of what `np.arange` and `np.logspace` give, which JSON
    does not know and whose arrays cannot be compared."""
    match value:
        case dict():
            return {k: without_numpy(v) for k, v in value.items()}
        case list():
            return [without_numpy(v) for v in value]
        case tuple():
            return tuple(without_numpy(v) for v in value)
        case np.generic() | np.ndarray():
            return value.tolist()
    return value


def as_json(raw: dict[str, Any], where: str) -> str:
    """As JSON. Raises ConfigError for what contains itself, is too deep, or has other keys."""
    try:
        return json.dumps(raw, default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_plain(error, where) from None


def _not_plain(error: Exception, where: str) -> ConfigError:
    # Python's words for it depend on how deep the caller is
    why = "they are nested too deep" if isinstance(error, RecursionError) else error
    return ConfigError([f"expected plain nested dicts: {why}"], where)


def from_dict(raw: dict[str, Any], *, where: str = "") -> Experiment:
    """The Experiment of these plain values. Raises ConfigError with all that is wrong."""
    # As JSON, for there pydantic's strict mode takes a dict for a dataclass, a list for a tuple.
    values = json.loads(as_json(raw, where))
    problems, removed = {}, set()
    # A mistake can hide others: report it, take it out, look again.
    while True:
        try:
            experiment = _adapter().validate_json(json.dumps(values))
        except pydantic.ValidationError as error:
            found = mistakes.one_each(error.errors(include_url=False))
        else:
            break
        for details in found:
            # beyond what is named, a line that is counted and quickly made
            brief = [f"{'.'.join(map(str, details['loc']))}: {details['msg']}"]
            named = len(problems) < SHOWN
            for line in mistakes.describe(details, values) if named else brief:
                # Not what only follows from a default that stands in for what was taken out.
                if removed.isdisjoint(re.findall(r"\w+", line)):
                    problems[line] = None
        paths = {path for details in found for path in mistakes.culprits(details)}
        taken = [path[-1] for path in paths if mistakes.take_out(values, path)]
        if not taken:
            break
        removed.update(taken)
    if problems:
        raise ConfigError([*problems], where)
    return experiment


@functools.cache
def _adapter() -> pydantic.TypeAdapter:
    check_own()  # pydantic ends in a traceback
    return pydantic.TypeAdapter(Experiment)
