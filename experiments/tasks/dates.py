"""Dates as people write them, to be written as ISO 8601 does, character by character."""

import dataclasses
import string
from collections.abc import Callable
from datetime import date
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch
from experiments.tasks.drawn import whole_split
from experiments.tasks.sequence import FIRST, Translation, ids, pairs

MONTHS = (
    "january february march april may june july august september october november december"
).split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
WRITTEN = string.digits + string.ascii_letters + " ,./"
ISO = string.digits + "-"


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{'th' if n in (11, 12, 13) else ending}"


month = lambda d: MONTHS[d.month - 1]
day = lambda d: DAYS[d.weekday()]

FULL_YEAR: tuple[Callable[[date], str], ...] = (
    lambda d: f"{d.day} {month(d)} {d.year}",
    lambda d: f"{month(d).title()} {d.day}, {d.year}",
    lambda d: f"{day(d).title()}, {ordinal(d.day)} of {month(d).title()} {d.year}",
    lambda d: f"{d.day:02}/{d.month:02}/{d.year}",  # the day first
)
SHORT_YEAR: tuple[Callable[[date], str], ...] = (
    lambda d: f"{day(d)} {d.day} {month(d)[:3]} {d.year % 100:02}",
    lambda d: f"{d.day}.{d.month}.{d.year % 100:02}",
)
FORMATS = (*FULL_YEAR, *SHORT_YEAR)
# from, and up to but without: two digits stand for one century only, POSIX's 1969 to 2068
FULL = date(1600, 1, 1).toordinal(), date(2400, 1, 1).toordinal()
SHORT = date(1969, 1, 1).toordinal(), date(2069, 1, 1).toordinal()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dates(Translation):
    """ "Saturday, 3rd of March 2001" to "2001-03-03": a date drawn evenly from 1600 to 2399 (1969
    to 2068 where the year has two digits), in each of `FORMATS` in turn, one slice each, which is
    named by 3 March 2001 written so."""

    stream: ClassVar[str] = "dates"
    alphabets: ClassVar[tuple[str, str]] = (WRITTEN, ISO)
    vocab_size: ClassVar[int] = FIRST + len(WRITTEN)
    classes: ClassVar[int] = FIRST + len(ISO)
    length: ClassVar[int] = len("Wednesday, 22nd of September 2000")
    target_length: ClassVar[int] = len("2001-03-03") + 1

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(write(date(2001, 3, 3)) for write in FORMATS)

    def baselines(self) -> dict[str, float]:
        _, times = np.unique(whole_split(self, "validation").labels, axis=0, return_counts=True)
        return {"most frequent date": float(times.max() / times.sum())}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """Example number n is written as FORMATS[n % len(FORMATS)] does."""
        slices = number % len(FORMATS)
        low, high = np.where(slices[:, None] < len(FULL_YEAR), FULL, SHORT).T
        drawn = [date.fromordinal(int(n)) for n in random.integers(low, high)]
        sources = [ids(FORMATS[i](d), WRITTEN) for d, i in zip(drawn, slices)]
        return pairs(sources, [ids(d.isoformat(), ISO) for d in drawn], slices, self)
