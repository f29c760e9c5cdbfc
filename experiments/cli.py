"""Command lines of the lab: absl flags, all mistakes at once, an exit code and no traceback."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from experiments.errors import ConfigError, Interrupted, LabError, RunDirectoryError, nearest
from experiments.memory import run_in_caller
from experiments.redact import redacted
from experiments.say import say
from experiments.stdout import tell

DASHED = re.compile(r"-(?!\.?\d)")  # as a flag is, and a number below 0 is not


def main(
    define: Callable[[flags.FlagValues], None],
    run: Callable[..., None],
    *,
    load: Callable[[str, Sequence[str]], Any] | None = None,
    usage: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs one command and returns its exit code.

    `define` adds its flags to the FlagValues it is given; one whose default is None is required.
    `run` gets the parsed flags and, if there is a `load`, what that returns for `--config` and the
    `--config.a.b=value` arguments; `experiments.config_file.read` is such a `load`.
    """
    _open_standard()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    values = flags.FlagValues()
    define(values)
    if {"--help", "-help", "-h"} & set(arguments):
        tell("\n".join([usage.strip(), *(f"--{n}: {values[n].help}" for n in values)]))
        return 0
    run_in_caller()
    try:
        overrides, problems = _parse(values, arguments, overridable=load is not None)
        loaded, where = [], ""
        if load is not None and values.config:
            try:
                loaded = [load(values.config, overrides)]
            except ConfigError as error:
                problems, where = [*problems, *error.problems], error.where
        if problems:
            raise ConfigError(problems, where)
        run(values, *loaded)
    except LabError as error:
        prefix = "" if isinstance(error, Interrupted) else "error: "
        say(f"{prefix}{error}")
        return error.code
    except OSError as error:
        # a write to a full disk may name no file
        written = next((values[n].value for n in ("out", "workdir") if n in values), None)
        where = f" in {written}" if written and not error.filename else ""
        say(f"error: {redacted(f'{error}{where}')}")
        return RunDirectoryError.code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except SystemExit as error:  # of a mechanism or a task of the user's own
        *_, last = traceback.extract_tb(error.__traceback__)
        say(redacted(f"error: {last.filename}:{last.lineno} ended it: sys.exit({error.code!r})"))
        return 1
    return 0


def _open_standard() -> None:
    """Stdin, stdout and stderr that were closed, as by `2>&-`, lead nowhere: a file that is opened
    would get their number, and what is written there for people."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)  # as the others are, by worker processes
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def _parse(
    values: flags.FlagValues, arguments: list[str], *, overridable: bool
) -> tuple[list[str], list[str]]:
    """The overrides, written `--config.a.b=value`, and what is wrong with the rest."""
    overrides, others, problems, seen = [], [], [], set()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.lstrip("-").partition("=")
        dashed = argument.startswith("-")
        flag = name if name in values else name.removeprefix("no")  # of a switch
        override = dashed and overridable and flag.startswith("config.")
        known = override or (dashed and flag in values)
        if not known:
            what = f"unknown flag{_nearest_flag(name, values)}" if dashed else "unexpected argument"
            problems.append(f"{argument}: {what}")
            continue
        if flag in seen and not (flag in values and isinstance(values[flag], flags.MultiFlag)):
            problems.append(f"--{flag}: given twice")
        seen.add(flag)
        # `--flag value`; a switch, such as `--config.model.tied`, stands alone
        if not equals and not _is_switch(values, flag) and rest and not DASHED.match(rest[0]):
            argument = f"{argument}={rest.pop(0)}"
        # a shell puts the home folder in after a space alone: `--workdir=~/runs` made one called ~
        before, equals, value = argument.partition("=")
        argument = f"{before}{equals}{os.path.expanduser(value)}"
        (overrides if override else others).append(argument)
    for argument in others:  # one by one: of several absl reads none after the first mistake
        try:
            values(["", argument])
        except (flags.Error, ValueError) as error:  # a switch with a value: no error of its own
            problems.append(str(error))
    values.mark_as_parsed()
    for name in values:
        # each of those given several times: an empty --workdir would be the current folder
        if values[name].default is None and not all(values[name].value or [""]):
            problems.append(f"--{name}: is required, {values[name].help}")
    return overrides, problems


def _is_switch(values: flags.FlagValues, name: str) -> bool:
    return name in values and values[name].boolean


def _nearest_flag(name: str, values: flags.FlagValues) -> str:
    return nearest(f"--{name}", [f"--{known}" for known in values])
