"""Induction heads (Olsson et al. 2022, arXiv:2209.11895): what followed this token before?"""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_different, require_int
from experiments.tasks.counting import most_frequent
from experiments.tasks.drawn import Drawn, full_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Induction(Drawn):
    """Tokens at random with a special one somewhere, and again at the end, where the token that
    followed it is asked for (Gu & Dao 2023, arXiv:2312.00752: 16 tokens, length 256). The special
    token is 1, others from 2 on.

    `lengths` asks what carries over to longer rows, as they do: training rows have the first of
    them, held-out rows each in turn, one slice each, padded to `length`. () is `length` alone.
    """

    stream: ClassVar[str] = "induction"
    vocab_size: int = 16
    length: int = 256
    lengths: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, 4)
        require_int("length", self.length, 3)
        require_different("lengths", self.lengths, 3, self.length, least=0)

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(f"{length} tokens" for length in self.lengths) or super().slices

    def baselines(self) -> dict[str, float]:
        counted = most_frequent(self, 2)
        return {"chance": 1 / (self.vocab_size - 2), "most frequent of the row": counted}

    @property
    def train_length(self) -> int:
        return (self.lengths or (self.length,))[0]

    def draw_training(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        return self._made(random, np.zeros_like(number), self.train_length)

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """Example number n has lengths[n % len(lengths)] tokens."""
        return self._made(random, number % max(1, len(self.lengths)), self.length)

    def _made(self, random: np.random.Generator, kind: Int[np.ndarray, "B"], width: int) -> Batch:
        lengths = np.array(self.lengths or (self.length,), np.int32)
        slices = kind.astype(np.int32)
        tokens = np.zeros((kind.size, width), int)
        labels = np.zeros_like(tokens)
        for index in np.unique(slices):
            length = lengths[index]
            rows = np.flatnonzero(slices == index)
            x = random.integers(2, self.vocab_size, size=(rows.size, length))
            at = random.integers(0, length - 2, size=rows.size)
            x[np.arange(rows.size), at] = x[:, -1] = 1
            tokens[rows, :length] = x
            labels[rows, length - 1] = x[np.arange(rows.size), at + 1]
        batch = full_rows(tokens, labels, labels > 0)
        return dataclasses.replace(batch, lengths=lengths[slices], slices=slices)
