"""Config files: `get_config(arg)` and `sweep()` of a Python file, overrides, one Experiment each.

    --config=configs/recall.py:performer --config.model.layers=4

`get_config` returns nested dicts (or a ConfigDict) in the shape of `experiments.config`. `sweep`,
for a comparison, yields one dict of dotted field names and values for each run, such as
`{"model.attention": mechanism("linear"), "seed": 1}`; the command line overrides both. A "name"
in it is the run's label, and "match" the field that is solved where sizes are matched.
"""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import re
import runpy
import stat
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

from experiments.clashes import LABELS, clashes, given, record_of, settled_twice, swept, wrong
from experiments.config import Experiment, by_name
from experiments.errors import ConfigError, nearest
from experiments.fairness import Fairness, fairness
from experiments.mistakes import shorten
from experiments.validation import from_dict, plain, without_numpy

Sweep = list[tuple[dict[str, Any], Experiment]]
# what begins as a number, and what is written as one: '1_0', '010', ' 7' and '0x7' are read too
ODD = re.compile(r"\s*[+-]?\.?\d[^,]*", re.DOTALL)
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LARGEST = 1_000_000  # bytes; a config has about a thousand
MOST = 100_000  # runs


def read(config: str, overrides: Sequence[str] = ()) -> Experiment:
    """The Experiment of `FILE[:ARG]` and `--config.a.b=value` arguments. Raises ConfigError."""
    _, raw = load(config)
    return from_dict(override(raw, overrides), where=config)


def read_sweep(config: str, overrides: Sequence[str] = ()) -> Sweep:
    """Each dict that the file's `sweep()` yields, and its Experiment. Raises ConfigError."""
    return _sweep(*load(config), config, overrides)


def read_comparison(config: str, overrides: Sequence[str] = ()) -> tuple[Sweep, Fairness]:
    """`read_sweep`, and what makes it fair: `match`, `budget` and `search`. Raises ConfigError."""
    names, raw = load(config)
    sweep, rules = _sweep(names, raw, config, overrides), fairness(names, config)
    if problems := settled_twice([cell for cell, _ in sweep], rules, overrides):
        raise ConfigError([*dict.fromkeys(problems)], config)
    return sweep, rules


def _sweep(names: dict, raw: dict, config: str, overrides: Sequence[str]) -> Sweep:
    if not callable(names.get("sweep")):
        raise ConfigError(["there is no function sweep() to say what is compared"], config)
    # one more than are allowed, for it may never end
    some = lambda: list(itertools.islice(names["sweep"](), MOST + 1))
    cells = _call(some, "sweep()", config.partition(":")[0])
    if not cells:
        raise ConfigError(["sweep() yields nothing"], config)
    if len(cells) > MOST:
        raise ConfigError([f"sweep() yields more than {MOST:,} runs: does it end?"], config)
    if not all(isinstance(cell, dict) for cell in cells):
        raise ConfigError(["sweep() should yield dicts of dotted field names and values"], config)
    if mistakes := [*dict.fromkeys(line for cell in cells for line in wrong(cell))]:
        raise ConfigError(mistakes, f"sweep() of {config}")
    cells = [plain(cell, f"sweep() of {config}") for cell in cells]
    # its labels would be false
    problems = clashes(given(overrides), "sweep() sets", swept(cells), "--config.")
    # another record before the fields that sweep() sets in it, which would be lost with the old one
    asked = dict(zip(given(overrides), overrides, strict=True))
    records = {name: x.partition("=")[2] for name, x in asked.items() if record_of(name) != name}
    fields = [x for name, x in asked.items() if name not in records]
    experiments = []
    for cell in cells:
        values = without_numpy(raw)
        for name, value in (records | cell).items():
            if name not in LABELS:
                set_named(values, name, value)
        try:
            experiments.append(from_dict(override(values, fields), where=config))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError([*dict.fromkeys(problems)], config)
    return list(zip(cells, experiments, strict=True))


def override(raw: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The values with each `--config.a.b=value` set; what does not fit is left to validation."""
    try:
        values = config_dict.ConfigDict(raw).to_dict()
    except Exception as error:
        raise ConfigError([f"get_config() should return nested dicts: {error}"]) from None
    # records before their fields, which would be lost with the old one
    depth = lambda argument: record_of(*given([argument])).count(".")
    # one at a time, because config_flags stops at the first that it does not like
    for argument in sorted(arguments, key=depth):
        name, _, text = argument.partition("=")
        name = name.partition(".")[2]
        if record_of(name) != name:
            set_named(values, name, text)
            continue
        if ODD.fullmatch(text) and not NUMBER.fullmatch(text):
            set_field(values, name, text)  # a string, which a field of numbers refuses
            continue
        if text == "None":  # config_flags would write these four letters over a string
            set_field(values, name, None)
            continue
        try:
            config, parser = config_dict.ConfigDict(values), flags.FlagValues()
            config_flags.DEFINE_config_dict(
                "config",
                config,
                flag_values=parser,
                sys_argv=["", argument],
                lock_config=False,
                accept_new_attributes=True,
            )
            parser(["", argument])
            values = config.to_dict()
        except Exception:
            set_field(values, name, _literal(text))
    return values


def _literal(text: str) -> Any:
    with contextlib.suppress(Exception):
        return ast.literal_eval(text)
    return text


def set_field(values: dict[str, Any], name: str, value: Any) -> None:
    """Sets a dotted name in nested dicts."""
    *section, field = name.split(".")
    for part in section:
        if not isinstance(values.get(part), dict):
            record = by_name(values.get(part))
            values[part] = record if isinstance(record, dict) else {}
        values = values[part]
    values[field] = value


def set_named(values: dict[str, Any], name: str, value: Any) -> None:
    """`set_field`; `task.name` is another task, with none of the fields of the one before."""
    set_field(values, record_of(name), value)


def load(config: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names that the file defines, and what its get_config returns."""
    path, colon, argument = config.partition(":")
    names = _call(lambda: runpy.run_path(_checked(path)), "the file", path)
    if problems := _twice(path):
        raise ConfigError(problems, path)
    function = names.get("get_config")
    if not callable(function):
        raise ConfigError(["there is no function get_config(arg)"], path)
    arguments = (argument,) if colon else ()
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        takes = f"no argument, got {argument!r}" if colon else "an argument: --config=FILE:ARG"
        raise ConfigError([f"get_config takes {takes}"], path) from None
    raw = _call(lambda: _got(function, arguments, names), f"get_config({argument!r})", path)
    raw = raw.to_dict() if isinstance(raw, config_dict.ConfigDict) else raw
    if not isinstance(raw, dict):
        raise ConfigError([f"get_config should return a dict, got {shorten(repr(raw))}"], path)
    return names, plain(raw, path)


def _got(function: Callable[..., Any], arguments: tuple[str, ...], names: dict[str, Any]) -> Any:
    """What get_config returns. Raises ValueError for an argument that no table of the file has."""
    try:
        return function(*arguments)
    except KeyError as error:
        if not arguments or error.args != arguments:
            raise
        rules = [field.name for field in dataclasses.fields(Fairness)]
        public = [x for name, x in names.items() if name[0] != "_" and name not in rules]
        tables = [x for x in public if isinstance(x, dict)]
        valid = [key for table in tables for key in table if isinstance(key, str)]
        raise ValueError(f"unknown argument{nearest(arguments[0], valid)}") from None


def _checked(path: str) -> str:
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > LARGEST:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {LARGEST:,}")
    return path


def _twice(path: str) -> list[str]:
    """Keys that a dict of the file has twice, for which Python would take the last in silence."""
    dicts = [x for x in ast.walk(ast.parse(Path(path).read_bytes())) if isinstance(x, ast.Dict)]
    twice = []
    for keys in dicts:
        there = set()
        for key in keys.keys:
            if isinstance(key, ast.Constant):
                if key.value in there:
                    twice.append(key)
                there.add(key.value)
    return [
        f"line {key.lineno}: {shorten(repr(key.value))} is given twice in one dict" for key in twice
    ]


def _call(function: Callable[[], Any], what: str, path: str) -> Any:
    """What the file of someone else does wrong becomes a message with its line."""
    try:
        return function()
    except (Exception, SystemExit) as error:
        if isinstance(error, FileNotFoundError) and error.filename == path:
            files = [str(p) for p in Path(path).parent.glob("*.py")]
            raise ConfigError([f"there is no such file{nearest(path, files)}"], path) from None
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = f", line {frames[-1]}" if frames else ""
        text = shorten(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        raise ConfigError([f"{what}{line}: {text}{_beside(error, path)}"], path) from None


def _beside(error: BaseException, path: str) -> str:
    """Where the module is that the config did not find, if it stands beside the config: that folder
    is not searched."""
    folder = Path(path).parent
    here = isinstance(error, ModuleNotFoundError) and error.name
    found = here and ((folder / here).is_dir() or (folder / f"{here}.py").is_file())
    return f"; it stands beside the config: set PYTHONPATH={folder.resolve()}" if found else ""
