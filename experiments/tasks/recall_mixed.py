"""Recall of several sizes at once, asked about larger ones (Based, Arora et al. 2024)."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require, require_int
from experiments.tasks.drawn import Drawn, whole_split
from experiments.tasks.recall import counted, guesses, require_law, rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallMixed(Drawn):
    """Rows of `Recall`, kind n of `lengths[n]` tokens with `pairs[n]` pairs, in training as often
    as `shares[n]` says; held-out rows have each of `held_lengths` and `held_pairs` in turn, one
    slice each (arXiv:2402.18668, figure 2, whose sizes are the defaults). Padded to the longest, in
    training to the longest that is trained on.
    """

    stream: ClassVar[str] = "recall_mixed"
    vocab_size: int = 8192
    lengths: tuple[int, ...] = (64, 128, 256, 256, 256)
    pairs: tuple[int, ...] = (4, 8, 16, 32, 64)
    shares: tuple[int, ...] = (5, 1, 1, 1, 1)
    held_lengths: tuple[int, ...] = (64, 64, 64, 128, 256, 512, 1024)
    held_pairs: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    alpha: float = 0.01
    noise: bool = True
    validation: int = 700
    test: int = 7_000

    def __post_init__(self):
        super().__post_init__()
        most = 0
        for names in (("lengths", "pairs", "shares"), ("held_lengths", "held_pairs")):
            kinds = [getattr(self, name) for name in names]
            for name, values in zip(names, kinds):
                what = f"a tuple of integers, one for each of {names[0]}"
                ok = isinstance(values, tuple) and len(values) == len(kinds[0]) > 0
                require(ok, name, what, values)
                for value in values:
                    require_int(name, value, 1, 2**20)
            for length, pairs in zip(*kinds[:2]):
                require(4 * pairs <= length, names[0], f">= 4 * {pairs} pairs", length)
            most = max(most, *kinds[1])
        held = [*zip(self.held_lengths, self.held_pairs)]
        require(len({*held}) == len(held), "held_lengths, held_pairs", "kinds that differ", held)
        require_law(self, most)

    @property
    def length(self) -> int:
        return max(self.lengths + self.held_lengths)

    @property
    def train_length(self) -> int:
        return max(self.lengths)

    @property
    def padded(self) -> bool:
        return min(self.lengths) < self.train_length

    @property
    def slices(self) -> tuple[str, ...]:
        held = zip(self.held_lengths, self.held_pairs)
        return tuple(f"{counted(kv)} in {length}" for length, kv in held)

    @property
    def asked(self) -> int:
        return max(self.pairs + self.held_pairs)

    def baselines(self) -> dict[str, float]:
        return guesses(whole_split(self, "validation"), self.held_pairs, self.vocab_size)

    def draw_training(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        ends = np.cumsum(self.shares)
        kind = np.searchsorted(ends, number % ends[-1], side="right")
        batch = rows(random, kind, self.lengths, self.pairs, width=self.train_length, task=self)
        # their kinds are not those of the slices
        return dataclasses.replace(batch, slices=np.zeros_like(batch.slices))

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """Example number n is of the held-out kind n % len(held_pairs)."""
        kind = number % len(self.held_pairs)
        held = self.held_lengths, self.held_pairs
        return rows(random, kind, *held, width=self.length, task=self)
