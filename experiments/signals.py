"""SIGTERM, SIGINT and SIGHUP: a first one asks the run to finish its step and save, a second ends
it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar, Self

from experiments.errors import Interrupted
from experiments.say import say_at_once

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AGAIN = 0.0  # seconds in which another is the same request, told twice


def asking() -> list[int]:
    """Those of ASKING that do: under nohup a closed terminal asks for nothing."""
    unasked = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [x for x in ASKING if x != signal.SIGHUP or not unasked]


class Signals:
    """`caught` is the number of the signal that came while this was entered, or None; `last` that
    of the one left last, for whoever called what failed before it could answer."""

    last: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.caught: int | None = None
        self.since = 0.0  # when it came
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals; a run in another one has no handler.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in asking()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        Signals.last = self.caught

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            if time.monotonic() - self.since >= AGAIN:
                os._exit(128 + number)
            return
        self.caught, self.since = number, time.monotonic()
        say_at_once(b"\nstopping after this step; once more to stop at once\n")


@contextlib.contextmanager
def ending(told: str) -> Iterator[None]:
    """SIGTERM raises Interrupted, as Ctrl-C does KeyboardInterrupt: what is open is closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number, told)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
