"""The batches of a run, drawn ahead while the steps before them are made."""

import collections
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

# At most so many, and no further one after so many seconds. After a step of a CPU nothing that
# Python needs is in a cache any more: the first batch takes four times as long as those behind it.
MOST, SECONDS = 8, 0.005


class Ahead(Generic[T]):
    """`draw(n)` for each n of `numbers`, in this order, some at a time by one thread.

    One, because contexts of JAX, in which another may draw other numbers, are a thread's own.
    """

    def __init__(
        self, thread: ThreadPoolExecutor, draw: Callable[[int], T], numbers: range
    ) -> None:
        self.thread, self.draw, self.left = thread, draw, numbers
        self.drawn: collections.deque[T] = collections.deque()
        self.coming = thread.submit(self._some)

    def next(self) -> T:
        """Raises what `draw` raised, not before the batches that it has drawn are taken."""
        if not self.drawn:
            self.drawn.extend(self.coming.result())
            self.coming = self.thread.submit(self._some)
        return self.drawn.popleft()

    def _some(self) -> list[T]:
        found, end = [], time.monotonic() + SECONDS
        for number in self.left[:MOST]:
            if found and time.monotonic() >= end:
                break
            try:
                found.append(self.draw(number))
            except BaseException:  # a task may call sys.exit, too
                if not found:
                    raise
                break  # the next call raises it
        self.left = self.left[len(found) :]
        return found
