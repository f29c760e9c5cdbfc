"""Tasks whose rows are drawn by a rule: afresh for every training step, once for evaluation."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import (
    MOST_DRAWN,
    SPLITS,
    Batch,
    Task,
    check_draw,
    check_split,
    require,
    require_int,
    rng,
)

BLOCK = 256  # evaluation rows are drawn this many at a time, whatever the batch size
TRIES = 1000  # to draw a row that is not held out
ROOM = 1000  # rows drawn to see how much of what may be drawn is held out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn(Task):
    """A task with a `draw`, under a name for its streams of random numbers. No row of validation is
    in test, and none of either is trained on: it is drawn again."""

    head: ClassVar[str] = "token"
    stream: ClassVar[str]
    validation: int = 3_000
    test: int = 3_000

    def __post_init__(self):
        for name in ("validation", "test"):
            require_int(name, getattr(self, name), 1, MOST_DRAWN)

    @property
    def classes(self) -> int:
        return self.vocab_size

    @abc.abstractmethod
    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """One row for each example number; only what kind of row it is may depend on that."""

    def size(self, split: str) -> int | None:
        check_split(split)
        return {"train": None, "validation": self.validation, "test": self.test}[split]

    def batch(self, seed: int, step: int, batch_size: int) -> Batch:
        check_draw(seed, step, batch_size)
        number = step * batch_size + np.arange(batch_size)
        random = rng(self.stream, "train", seed, step)
        return _unseen(self.draw_training, random, number, held_out(self))

    def draw_training(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        """The rows to train on: those of evaluation, where a task says nothing else."""
        return self.draw(random, number)

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        return whole_split(self, split)[indices]

    def content(self) -> bytes:
        """All that is drawn of a block of validation rows and of the first training rows."""
        held = self.examples("validation", np.arange(min(BLOCK, self.validation)))
        drawn = (held, self.batch(0, 0, 8))
        arrays = (getattr(batch, f.name) for batch in drawn for f in dataclasses.fields(Batch))
        return b"".join(np.asarray(x).tobytes() for x in arrays)


@functools.lru_cache(maxsize=4)
def whole_split(task: Drawn, split: str) -> Batch:
    """Every row of a finite split."""
    size = task.size(split)
    require(size is not None, "split", "validation or test", split)
    held = frozenset(_rows(whole_split(task, "validation")) if split == "test" else ())
    blocks = [
        _unseen(task.draw, rng(task.stream, split, start), start + np.arange(BLOCK), held)
        for start in range(0, size, BLOCK)
    ]
    names = [f.name for f in dataclasses.fields(Batch)]
    return Batch(**{n: np.concatenate([getattr(b, n) for b in blocks])[:size] for n in names})


@functools.lru_cache(maxsize=4)
def held_out(task: Drawn) -> frozenset[bytes]:
    """Every row of validation and test; refused where too little else is left to train on."""
    held = frozenset(row for split in SPLITS[1:] for row in _rows(whole_split(task, split)))
    drawn = task.draw_training(rng(task.stream, "room"), np.arange(ROOM))
    taken = np.array([row in held for row in _rows(drawn)])
    for index in np.unique(drawn.slices):
        share = taken[drawn.slices == index].mean()
        if share > 0.9:
            raise ValueError(
                "validation, test: expected so few rows that a tenth of those there are is left to "
                f"train on, got {share:.0%} of {task.slices[index]!r} held out by {task}"
            )
    return held


def _rows(batch: Batch) -> list[bytes]:
    """Without padding: training rows may be narrower."""
    return [row[:length].tobytes() for row, length in zip(batch.tokens, batch.lengths)]


def _unseen(
    draw: Callable[[np.random.Generator, Int[np.ndarray, "B"]], Batch],
    random: np.random.Generator,
    number: Int[np.ndarray, "B"],
    held: frozenset[bytes],
) -> Batch:
    """Rows drawn, and those that are held drawn again."""
    batch = draw(random, number)
    for _ in range(TRIES):
        again = np.flatnonzero([row in held for row in _rows(batch)])
        if not again.size:
            return batch
        for name, rows in vars(draw(random, number[again])).items():
            getattr(batch, name)[again] = rows
    few = "so few rows that others can be drawn"
    raise ValueError(f"validation, test: expected {few}, got {len(held)} held out")


def full_rows(
    tokens: Int[np.ndarray, "B T"], labels: Int[np.ndarray, "B T"], asked: Int[np.ndarray, "B T"]
) -> Batch:
    """Rows without padding, of one slice, that count where `asked`."""
    rows, length = tokens.shape
    return Batch(
        tokens=tokens.astype(np.int32),
        lengths=np.full(rows, length, np.int32),
        labels=np.where(asked, labels, 0).astype(np.int32),
        weights=asked.astype(np.float32),
        slices=np.zeros(rows, np.int32),
    )
