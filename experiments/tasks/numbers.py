"""Numbers in words, to be written in digits."""

import dataclasses
import string
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_int
from experiments.tasks.sequence import FIRST, Translation, ids, pairs

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = string.ascii_lowercase + " "


def words(n: int) -> str:
    """British: 402 is "four hundred and two", 7_021 "seven thousand and twenty one"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        tens = TENS[n // 10 - 2]
        return f"{tens} {ONES[n % 10]}" if n % 10 else tens
    unit, name = (1000, "thousand") if n >= 1000 else (100, "hundred")
    head, rest = f"{words(n // unit)} {name}", n % unit
    if not rest:
        return head
    return f"{head} and {words(rest)}" if rest < 100 else f"{head} {words(rest)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(Translation):
    """ "four hundred and two" to "402": every number of at most `digits` digits, evenly. Those
    with a 0 in them, which no word stands for, are a slice of their own. Letters and spaces in,
    digits out."""

    stream: ClassVar[str] = "numbers"
    alphabets: ClassVar[tuple[str, str]] = (WORDS, string.digits)
    slices: ClassVar[tuple[str, ...]] = ("without 0", "with 0")
    vocab_size: ClassVar[int] = FIRST + len(WORDS)
    classes: ClassVar[int] = FIRST + len(string.digits)
    digits: int = 6

    def __post_init__(self):
        super().__post_init__()
        require_int("digits", self.digits, 1, 6)

    @property
    def length(self) -> int:
        # no digit has a longer word than 3, no ten than 70
        return len(words(int("373373"[-self.digits :])))

    @property
    def target_length(self) -> int:
        return self.digits + 1

    def baselines(self) -> dict[str, float]:
        return {"chance": 10.0**-self.digits}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        drawn = random.integers(0, 10**self.digits, number.size).tolist()
        slices = np.array(["0" in str(n) for n in drawn])
        sources = [ids(words(n), WORDS) for n in drawn]
        return pairs(sources, [ids(str(n), string.digits) for n in drawn], slices, self)
