"""Lines on stdout, if anyone still reads: a reader that leaves, as `| head` does, stops nothing."""

import io
import os
import sys

import rich.console


def tell(line: str) -> None:
    """Prints the line at once. Raises OSError naming stdout if it cannot be written, as to a full
    disk."""
    _take_any_letter()
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _lead_nowhere()
    except OSError as error:
        _lead_nowhere()
        error.filename = "stdout"
        raise


WIDE = 1_000  # no table is


class Console(rich.console.Console):
    """The same for coloured output. A file or a pipe has no edge that a table is cut at; names and
    paths are printed as they are, whatever rich would make of [bold] or :bug: in them."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)
        _take_any_letter()
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = WIDE

    def on_broken_pipe(self) -> None:
        """Drops the rest: rich's own method ends the process, with whatever it is doing."""
        _lead_nowhere()

    def print(self, *objects: object, **options: object) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            _lead_nowhere()
            error.filename = "stdout"
            raise


def _take_any_letter() -> None:
    """One that its encoding lacks is written by its number, as on stderr: a path of any bytes, or
    the ± of a table where all is ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _lead_nowhere() -> None:
    """What is left to write would fail once more at the end, where Python complains of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
