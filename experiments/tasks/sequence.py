"""Tasks from one sequence to another, and two over symbols: reversing and sorting."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_different, require_int
from experiments.tasks.drawn import Drawn

END = 1  # closes every target; 0 fills what follows it, and stands before its first token
FIRST = 2  # the first id that a symbol may have, in sources and in targets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Drawn):
    """A source and its target, closed by END; a row counts once, when all of its target is given:
    an exact match."""

    head: ClassVar[str] = "sequence"
    padded: ClassVar[bool] = True
    alphabets: ClassVar[tuple[str, str]] = ("", "")  # of sources and targets, "" for bare ids

    @property
    @abc.abstractmethod
    def target_length(self) -> int:
        """U, the width of every batch of targets, with END."""

    @property
    def asked(self) -> int:
        return self.target_length

    def characters(self, tokens: Sequence[int], *, target: bool) -> list[str]:
        """One for each token, to be read by people."""
        alphabet = self.alphabets[target]
        name = lambda t: alphabet[t - FIRST] if t >= FIRST else f"<{t}>"
        name = name if alphabet else str
        return ["end" if t == END else name(t) for t in tokens]


def pairs(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    slices: Int[np.ndarray, "B"],
    task: Translation,
) -> Batch:
    """The rows of these sources and targets, without END, as `task` has them."""
    tokens = np.zeros((len(sources), task.length), np.int32)
    labels = np.zeros((len(sources), task.target_length), np.int32)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        tokens[row, : len(source)] = source
        labels[row, : len(target) + 1] = [*target, END]
    return Batch(
        tokens=tokens,
        lengths=np.array([len(source) for source in sources], np.int32),
        labels=labels,
        weights=(labels > 0).astype(np.float32),
        slices=slices.astype(np.int32),
    )


def ids(text: str, alphabet: str) -> list[int]:
    """Characters as tokens from FIRST on."""
    return [alphabet.index(character) + FIRST for character in text]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Symbols(Translation):
    """n symbols drawn evenly, with n of `lengths` in turn, one slice each."""

    vocab_size: int = 28
    lengths: tuple[int, ...] = (8, 12, 16)

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, FIRST + 2)
        require_different("lengths", self.lengths, 1)

    @property
    def length(self) -> int:
        return max(self.lengths)

    @property
    def target_length(self) -> int:
        return self.length + 1

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(f"{n} symbols" if n > 1 else "1 symbol" for n in self.lengths)

    def baselines(self) -> dict[str, float]:
        symbols = self.vocab_size - FIRST
        return {"chance": float(np.mean([float(symbols) ** -n for n in self.lengths]))}

    @abc.abstractmethod
    def target(self, x: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """What is asked for."""

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """Example number n has lengths[n % len(lengths)] symbols."""
        slices = number % len(self.lengths)
        drawn = random.integers(FIRST, self.vocab_size, (number.size, self.length))
        sources = [x[: self.lengths[i]] for x, i in zip(drawn, slices)]
        return pairs(sources, [self.target(x) for x in sources], slices, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reverse(Symbols):
    """x_n .. x_1 from x_1 .. x_n: each token is looked up at a place of its own."""

    stream: ClassVar[str] = "reverse"

    def target(self, x: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        return x[::-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sort(Symbols):
    """The same symbols in ascending order: each token is decided by all."""

    stream: ClassVar[str] = "sort"

    def target(self, x: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        return np.sort(x)
