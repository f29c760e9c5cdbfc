"""Multi-query associative recall (Zoology, Arora et al. 2023, arXiv:2312.04927)."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from experiments.tasks.base import Batch, require, require_different, require_int
from experiments.tasks.drawn import Drawn, whole_split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recall(Drawn):
    """k1 v1 k2 v2 ... then each key once more, to be answered with its value; `noise` or 0 between.

    Keys lie in [1, V/2), values in [V/2, V). Unlike Zoology, training rows are drawn afresh
    for every step, and noise never repeats a key of its own row.
    """

    stream: ClassVar[str] = "recall"
    vocab_size: int = 8192
    length: int = 64
    pairs: tuple[int, ...] = (4,)  # one slice each, mixed evenly
    alpha: float = 0.01  # query distance j has probability ~ j ** (alpha - 1); 1 is uniform
    noise: bool = True  # False: 0 between, as in Zoology's figure 2

    def __post_init__(self):
        super().__post_init__()
        require_int("length", self.length, 1)
        require_different("pairs", self.pairs, 1)
        most = max(self.pairs)
        require(4 * most <= self.length, "length", f">= 4 * {most} pairs", self.length)
        require_law(self, most)

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(map(counted, self.pairs))

    @property
    def asked(self) -> int:
        return max(self.pairs)

    def baselines(self) -> dict[str, float]:
        return guesses(whole_split(self, "validation"), self.pairs, self.vocab_size)

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """Example number n has pairs[n % len(pairs)] pairs."""
        lengths = (self.length,) * len(self.pairs)
        kind = number % len(self.pairs)
        return rows(random, kind, lengths, self.pairs, width=self.length, task=self)


def rows(
    random: np.random.Generator,
    kind: Int[np.ndarray, "B"],
    lengths: tuple[int, ...],
    pairs: tuple[int, ...],
    *,
    width: int,
    task,
) -> Batch:
    """Row n has lengths[kind[n]] tokens and pairs[kind[n]] pairs, of the slice kind[n]."""
    tokens = np.zeros((kind.size, width), np.int32)
    labels = np.zeros_like(tokens)
    law = {name: getattr(task, name) for name in ("vocab_size", "alpha", "noise")}
    for index, (length, kv) in enumerate(zip(lengths, pairs, strict=True)):
        these = np.flatnonzero(kind == index)
        made = sequences(random, these.size, kv, length=length, **law)
        tokens[these, :length], labels[these, :length] = made
    return Batch(
        tokens=tokens,
        lengths=np.array(lengths, np.int32)[kind],
        labels=labels,
        weights=(labels > 0).astype(np.float32),  # a value is never 0
        slices=kind.astype(np.int32),
    )


def counted(kv: int) -> str:
    return f"{kv} pairs" if kv > 1 else "1 pair"


def require_law(task, most: int) -> None:
    """Raises ValueError for `vocab_size`, `alpha` or `noise` that `most` keys cannot have."""
    require_int("vocab_size", task.vocab_size, 1)
    low = 2 * (most + 1)
    require(task.vocab_size >= low, "vocab_size", f">= {low} for {most} keys", task.vocab_size)
    ok = isinstance(task.alpha, int | float) and 0 < task.alpha < np.inf
    require(ok, "alpha", "a number > 0", task.alpha)
    require(isinstance(task.noise, bool), "noise", "True or False", task.noise)


def guesses(batch: Batch, pairs: tuple[int, ...], vocab_size: int) -> dict[str, float]:
    """What is right without reading a key, in rows whose slices have so many `pairs`."""
    # Each row asks as many questions as it has pairs, and one of its values is the answer.
    questions = np.array(pairs)[batch.slices]
    # The race below is won by near places: the first question tends to be the first key's.
    asked = batch.weights > 0
    value = 2 * np.cumsum(asked, axis=1) - 1  # where that of the last question's rank stands
    guess = np.take_along_axis(batch.tokens, value, axis=1)
    return {
        "chance": 1 / (vocab_size - vocab_size // 2),
        "any value of the prefix": float(questions.size / questions.sum()),
        "k-th question, k-th value": float((guess == batch.labels)[asked].mean()),
    }


def sequences(
    random: np.random.Generator,
    rows: int,
    kv: int,
    *,
    vocab_size: int,
    length: int,
    alpha: float,
    noise: bool = True,
) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"]]:
    """Tokens and labels (0 where nothing is asked) of rows with kv pairs."""
    half, prefix = vocab_size // 2, 2 * kv
    keys = 1 + _distinct(random, rows, kv, half - 1)
    values = half + _distinct(random, rows, kv, vocab_size - half)
    # In a race of exponential clocks of rates p, the arrivals are draws without replacement.
    distance = np.arange(1, (length - prefix) // 2 + 1)
    clocks = random.standard_exponential((rows, distance.size)) / distance ** (alpha - 1)
    query = prefix + 2 * np.argsort(clocks, axis=1)[:, :kv]

    fillers = _fillers(random, keys, vocab_size, length)
    tokens = fillers if noise else np.zeros_like(fillers)
    tokens[:, 0:prefix:2], tokens[:, 1:prefix:2] = keys, values
    np.put_along_axis(tokens, query, keys, axis=1)
    labels = np.zeros_like(tokens)
    np.put_along_axis(labels, query, values, axis=1)
    return tokens, labels


def _distinct(
    random: np.random.Generator, rows: int, count: int, n: int
) -> Int32[np.ndarray, "B K"]:
    """For each row, count different integers below n: the first places of a shuffle."""
    deck = np.tile(np.arange(n, dtype=np.int32), (rows, 1))
    row = np.arange(rows)
    for i, j in enumerate(random.integers(np.arange(count), n, size=(rows, count)).T):
        deck[row, i], deck[row, j] = deck[row, j], deck[row, i]
    return deck[:, :count]


def _fillers(
    random: np.random.Generator, keys: Int[np.ndarray, "B K"], vocab_size: int, length: int
) -> Int32[np.ndarray, "B T"]:
    """Uniform over the vocabulary without padding and without the row's own keys."""
    rows, kv = keys.shape
    # The r-th token that is no key is r plus the number of keys before it.
    before = np.sort(keys, axis=1) - np.arange(kv)
    r = random.integers(1, vocab_size - kv, size=(rows, length))
    shift = vocab_size * np.arange(rows)[:, None]  # keeps rows apart in one sorted search
    skipped = np.searchsorted((before + shift).ravel(), (r + shift).ravel(), side="right")
    return (r + skipped.reshape(r.shape) - kv * np.arange(rows)[:, None]).astype(np.int32)
