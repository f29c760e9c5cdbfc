"""Progress of a run: a rich bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from typing import Any, Self

from rich import progress
from rich.console import Console

from experiments.say import say

QUIET = 10  # seconds between plain lines


class Display:
    """`update` after each look at the metrics; `tell` and `warn` for a line that stays."""

    def __init__(self, *, total: int, shown: bool) -> None:
        self.total, self.shown, self.last = total, shown, 0.0
        self.bar = self._bar() if shown and sys.stderr.isatty() else None

    def _bar(self) -> progress.Progress:
        return progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[numbers]}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
            self.task = self.bar.add_task("training", total=self.total, numbers="compiling")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            with contextlib.suppress(OSError):  # the terminal may be closed
                self.bar.stop()

    def update(self, step: int, row: dict[str, Any], rate: float) -> None:
        """`rate` in steps a second, evaluation and saving left out."""
        numbers = "skipped"
        if "loss" in row:
            numbers = f"loss {row['loss']:.4f}  accuracy {row['accuracy']:.1%}"
        numbers += f"  {rate:.1f} steps/s"
        if self.bar:
            self.bar.update(self.task, completed=step, numbers=numbers)
        elif self.shown and time.monotonic() - self.last > QUIET:
            self.last = time.monotonic()
            left = (self.total - step) / rate
            say(f"step {step}/{self.total}  {numbers}  {left:.0f} s left")

    def tell(self, line: str) -> None:
        if self.bar:
            with contextlib.suppress(OSError):
                self.bar.console.print(line, highlight=False, markup=False)
        elif self.shown:
            say(line)

    def warn(self, line: str) -> None:
        """`tell`, whether progress is shown or not."""
        if self.bar:
            self.tell(line)
        else:
            say(line)
