"""Parity: is the number of ones odd? Asked once, after all bits."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, majority, require_int
from experiments.tasks.drawn import Drawn, whole_split

BANDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(Drawn):
    """Rows of min_length to max_length bits, label 1 for an odd number of ones; one slice, and
    as many rows, for each quarter of the lengths (Hahn 2020, arXiv:1906.06755; Deletang et al.
    2022, arXiv:2207.02098). Bit b is token b + 1. Modular asks for it at every bit, and so says
    how to get there."""

    head: ClassVar[str] = "classification"
    stream: ClassVar[str] = "parity"
    padded: ClassVar[bool] = True
    vocab_size: ClassVar[int] = 3
    classes: ClassVar[int] = 2
    min_length: int = 20
    max_length: int = 40

    def __post_init__(self):
        super().__post_init__()
        require_int("min_length", self.min_length, 1)
        require_int("max_length", self.max_length, self.min_length + BANDS - 1)

    @property
    def length(self) -> int:
        return self.max_length

    @property
    def slices(self) -> tuple[str, ...]:
        edges = [self._first(band) for band in range(BANDS + 1)]
        return tuple(_told(low, high - 1) for low, high in itertools.pairwise(edges))

    def baselines(self) -> dict[str, float]:
        labels = whole_split(self, "validation").labels
        return {"chance": 1 / 2, "majority class": majority(labels)}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        slices = number % BANDS
        firsts = np.array([self._first(band) for band in range(BANDS + 1)])
        lengths = random.integers(firsts[slices], firsts[slices + 1])
        bits = random.integers(0, 2, size=(number.size, self.max_length))
        real = np.arange(self.max_length) < lengths[:, None]
        return Batch(
            tokens=np.where(real, bits + 1, 0).astype(np.int32),
            lengths=lengths.astype(np.int32),
            labels=((bits * real).sum(1) % 2).astype(np.int32),
            weights=np.ones(number.size, np.float32),
            slices=slices.astype(np.int32),
        )

    def _first(self, band: int) -> int:
        """The least length of a band."""
        return self.min_length + band * (self.max_length + 1 - self.min_length) // BANDS


def _told(least: int, most: int) -> str:
    lengths = f"{least}-{most}" if most > least else f"{least}"
    return f"{lengths} bit" if most == 1 else f"{lengths} bits"
