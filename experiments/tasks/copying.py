"""Copying: all of a sequence, or what stands out in noise."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require, require_int
from experiments.tasks.counting import most_frequent
from experiments.tasks.drawn import Drawn, full_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy(Drawn):
    """x_1 .. x_n, a separator, and x again: after the separator each token is asked for from those
    before it (Jelassi et al. 2024, arXiv:2402.01032). The separator is 1, symbols from 2 on."""

    stream: ClassVar[str] = "copy"
    causal: ClassVar[bool] = True
    vocab_size: int = 32
    symbols: int = 32

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, 4)
        require_int("symbols", self.symbols, 1)

    @property
    def length(self) -> int:
        return 2 * self.symbols

    def baselines(self) -> dict[str, float]:
        return {
            "chance": 1 / (self.vocab_size - 2),
            "most frequent that is left": most_frequent(self, 2, left=True),
        }

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        x = random.integers(2, self.vocab_size, size=(number.size, self.symbols))
        tokens = np.concatenate([x, np.ones_like(x[:, :1]), x[:, :-1]], 1)
        labels = np.concatenate([np.zeros_like(x), x], 1)
        return full_rows(tokens, labels, labels > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopy(Drawn):
    """Symbols at places drawn at random among noise, then as many markers, each to be answered
    with the next symbol (Gu & Dao 2023, arXiv:2312.00752, with 16 symbols in 4,096 places). Noise
    is 1, a marker 2, symbols from 3 on."""

    stream: ClassVar[str] = "selective copy"
    vocab_size: int = 16
    symbols: int = 8
    length: int = 136  # markers included

    def __post_init__(self):
        super().__post_init__()
        for name, least in (("vocab_size", 5), ("symbols", 1), ("length", 2)):
            require_int(name, getattr(self, name), least)
        least = 2 * self.symbols
        require(self.length >= least, "length", f">= 2 * {self.symbols} symbols", self.length)

    def baselines(self) -> dict[str, float]:
        return {
            "chance": 1 / (self.vocab_size - 3),
            "most frequent that is left": most_frequent(self, 3, left=True),
        }

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        rows, n, places = number.size, self.symbols, self.length - self.symbols
        x = random.integers(3, self.vocab_size, size=(rows, n))
        # the places of the n least of so many uniform numbers
        at = np.sort(random.random((rows, places)).argsort(1)[:, :n], 1)
        tokens = np.full((rows, self.length), 1)
        np.put_along_axis(tokens, at, x, 1)
        tokens[:, places:] = 2
        labels = np.zeros_like(tokens)
        labels[:, places:] = x
        return full_rows(tokens, labels, labels > 0)
