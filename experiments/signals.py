"""SIGTERM, SIGINT and SIGHUP: a first one asks the run to finish its step and save, a second ends
it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType
from typing import ClassVar, Self

from experiments.errors import Interrupted
from experiments.say import say_at_once

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AGAIN = 0.0  # seconds in which another is the same request, told twice
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # which is its parent's


def asking() -> list[int]:
    """Those of ASKING that do: under nohup a closed terminal asks for nothing."""
    unasked = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [x for x in ASKING if x != signal.SIGHUP or not unasked]


class Signals:
    """`caught` is the number of the signal that came while this was entered, or None; `last` that
    of the one left last, for whoever called what failed before it could answer.

    Python handles signals in the main thread, between two of its own operations, and that thread
    may be in a program of XLA for minutes. So another thread is told of each at once.
    """

    last: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.caught: int | None = None
        self.since = 0.0  # when it came
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals; a run in another one has no handler.
        if threading.current_thread() is threading.main_thread():
            self._told, self._tell = os.pipe()
            os.set_blocking(self._tell, False)  # as set_wakeup_fd wants it
            self._handled = SimpleQueue()  # a second signal may come while a first waits
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
            self._woken = signal.set_wakeup_fd(self._tell)
            self._before = {number: signal.signal(number, self._wait) for number in asking()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._woken)
            os.close(self._tell)
            self._listener.join()
            os.close(self._told)
        Signals.last = self.caught

    def _wait(self, number: int, frame: FrameType | None) -> None:
        """Until the other thread has handled what came before: then it shows in `caught`."""
        if not self._listener.is_alive():  # in a fork of this process
            self._handle(number)
            return
        os.write(self._tell, b"\0")
        self._handled.get()

    def _listen(self) -> None:
        while told := os.read(self._told, 1):
            if told == b"\0":
                self._handled.put(None)
            elif told[0] in ASKING:
                self._handle(told[0])

    def _handle(self, number: int) -> None:
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
