"""Lines on stderr, if anyone still reads it."""

import contextlib
import os
import sys


def say(line: str) -> None:
    """Prints a line, if anyone reads: Ctrl-C ends a `| tee` too, before the run that is to save."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def say_at_once(line: bytes) -> None:
    """The same from a signal handler: print may be in the middle of a line."""
    with contextlib.suppress(OSError):
        os.write(2, line)
