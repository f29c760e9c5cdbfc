"""Errors that end a run in an orderly way: each has an exit code and a message, no traceback."""

import difflib
import signal
from collections.abc import Iterable, Sequence

from experiments.redact import redacted

SHOWN = 100  # mistakes that are named; beyond, only counted


class LabError(Exception):
    """Printed as it is by `experiments.cli`; `code` is the exit code."""

    code = 1

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


class ConfigError(LabError):
    """Mistakes in the command line or the configuration, all of them."""

    code = 2

    def __init__(self, problems: Sequence[str], where: str = "") -> None:
        self.problems = tuple(problems)
        self.where = where
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        heading = f"{count} in {where}" if where else count
        more = len(self.problems) - SHOWN
        last = [f"and {more} more"] if more > 0 else []
        lines = [f"  {line}" for line in (*self.problems[:SHOWN], *last)]
        super().__init__("\n".join([f"{heading}:", *lines]))


class NonFiniteError(LabError):
    """A loss, gradient or parameter that is nan or infinite."""

    code = 3


class CheckpointError(LabError):
    """No checkpoint that can be trusted, or one that could not be written."""

    code = 4


class DataError(LabError):
    """A file of data that is missing, or not as expected."""

    code = 4


class DeviceError(LabError):
    """No device to run on, so no fault of any one run."""


class RetraceError(LabError):
    """Arguments of a step that differ from those it was compiled for."""


class RunDirectoryError(LabError):
    """A run directory that belongs to another run, or that cannot be used."""

    code = 5


class InUseError(RunDirectoryError):
    """A directory that another process holds."""


class Interrupted(LabError):
    """A signal asked the run to stop; everything is saved."""

    def __init__(self, number: int, told: str) -> None:
        self.number, self.code = number, 128 + number
        super().__init__(f"{signal.Signals(number).name}: {told}")


def nearest(name: object, valid: Iterable[str]) -> str:
    """`; did you mean 'layers'?`, for the end of a message; empty if nothing is valid."""
    matches = difflib.get_close_matches(str(name)[:100], sorted(valid), n=1, cutoff=0.0)
    return f"; did you mean {matches[0]!r}?" if matches else ""
