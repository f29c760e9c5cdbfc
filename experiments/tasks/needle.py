"""A needle in a haystack: one fact among filler, somewhere, asked for at the end."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require, require_int
from experiments.tasks.counting import most_frequent
from experiments.tasks.drawn import Drawn, full_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needle(Drawn):
    """Filler with a key and right after it a value somewhere, and last the key again, to be
    answered with the value (after Kamradt 2023, "needle in a haystack", with tokens at random for
    text). Keys lie in [1, V/2), values in [V/2, V); filler is any token but the row's key. The
    slices are the fact's relative depth in `bands` bands, row n in band n % bands, so that accuracy
    by depth, and over runs of different lengths by length, makes the usual heat map."""

    stream: ClassVar[str] = "needle"
    vocab_size: int = 64
    length: int = 256
    bands: int = 5

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, 6)
        require_int("bands", self.bands, 1, 100)
        require_int("length", self.length, 3)
        # the places where a fact may start
        least = self.bands + 2
        require(self.length >= least, "length", f">= {least} for {self.bands} bands", self.length)

    @property
    def slices(self) -> tuple[str, ...]:
        edges = [round(100 * band / self.bands) for band in range(self.bands + 1)]
        return tuple(f"depth {low}-{high}%" for low, high in itertools.pairwise(edges))

    def baselines(self) -> dict[str, float]:
        half = self.vocab_size // 2
        counted = most_frequent(self, half)
        return {"chance": 1 / (self.vocab_size - half), "most frequent value": counted}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        rows, slices, half = np.arange(number.size), number % self.bands, self.vocab_size // 2
        keys = random.integers(1, half, size=rows.size)
        # Drawn from one token fewer: from the key on, each stands for the next.
        tokens = random.integers(1, self.vocab_size - 1, size=(rows.size, self.length))
        tokens += tokens >= keys[:, None]
        places = self.length - 2
        at = random.integers(slices * places // self.bands, (slices + 1) * places // self.bands)
        labels = np.zeros_like(tokens)
        labels[:, -1] = random.integers(half, self.vocab_size, size=rows.size)
        tokens[rows, at], tokens[rows, at + 1] = keys, labels[:, -1]
        tokens[:, -1] = keys
        batch = full_rows(tokens, labels, labels > 0)
        return dataclasses.replace(batch, slices=slices.astype(np.int32))
