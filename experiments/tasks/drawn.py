"""Tasks whose rows are drawn by a rule: afresh for every training step, once for evaluation."""

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import (
    MOST_DRAWN,
    Batch,
    Task,
    check_draw,
    check_split,
    require,
    require_int,
    rng,
)

BLOCK = 256  # evaluation rows are drawn this many at a time, whatever the batch size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn(Task):
    """A task with a `draw`, under a name for its streams of random numbers."""

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
        return self.draw(rng(self.stream, "train", seed, step), number)

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
    starts = range(0, size, BLOCK)
    blocks = [task.draw(rng(task.stream, split, s), s + np.arange(BLOCK)) for s in starts]
    names = [f.name for f in dataclasses.fields(Batch)]
    return Batch(**{n: np.concatenate([getattr(b, n) for b in blocks])[:size] for n in names})


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
