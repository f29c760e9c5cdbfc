"""Lines on stderr, for whoever still reads them."""

import contextlib
import os
import sys


def say(line: str) -> None:
    """Nothing where nobody does: Ctrl-C ends a `| tee` too, before the run that it asks to save."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def say_at_once(line: bytes) -> None:
    """The same from a signal handler: print may be in the middle of a line."""
    with contextlib.suppress(OSError):
        os.write(2, line)
