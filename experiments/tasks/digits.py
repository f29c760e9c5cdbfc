"""Real 8x8 handwritten digits, 10 classes (Alpaydin and Kaynak, 1998; UCI): pixels or patches."""

import dataclasses
import functools
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, Task, check_split, majority, require, rng
from experiments.tasks.patches import patches

SIDE = 8
HELD_OUT = 270  # rows of validation, and of test; the other 1,257 of 1,797 are for training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits(Task):
    """Row by row, pixel value v in 0..16 is token v + 1, since id 0 is padding."""

    head: ClassVar[str] = "classification"
    vocab_size: ClassVar[int] = 18
    length: ClassVar[int] = 64
    classes: ClassVar[int] = 10

    def size(self, split: str) -> int:
        return _data(split).labels.size

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        return _data(split)[indices]

    def baselines(self) -> dict[str, float]:
        labels = _data("validation").labels
        return {"chance": 1 / self.classes, "majority class": majority(labels)}

    def content(self) -> bytes:
        parts = [_data(split) for split in ("train", "validation", "test")]
        return b"".join(part.tokens.tobytes() + part.labels.tobytes() for part in parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitPatches(Digits):
    """The same images and splits as squares of `patch` x `patch` pixels, row by row, each a vector
    of numbers in [-1, 1] (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

    vocab_size: ClassVar[None] = None
    patch: int = 2

    def __post_init__(self):
        ok = isinstance(self.patch, int) and not isinstance(self.patch, bool)
        require(ok and self.patch in (1, 2, 4, 8), "patch", f"a divisor of {SIDE}", self.patch)

    @property
    def length(self) -> int:
        return (SIDE // self.patch) ** 2

    @property
    def token_width(self) -> int:
        return self.patch**2

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        pixels = super().examples(split, indices)
        values = (pixels.tokens - 1) / np.float32(8) - 1
        tokens = patches(values.astype(np.float32).reshape(-1, SIDE, SIDE), self.patch)
        lengths = np.full_like(pixels.lengths, self.length)
        return dataclasses.replace(pixels, tokens=tokens, lengths=lengths)


@functools.cache
def _data(split: str) -> Batch:
    check_split(split)
    images, labels = _load()
    order = rng("digits", "split").permutation(labels.size)
    order = order[np.argsort(labels[order], kind="stable")]
    # Evenly spaced places in an order by class: every split has its share of every class.
    held = np.linspace(0, labels.size, 2 * HELD_OUT, endpoint=False).astype(int)
    validation, test = held[0::2], held[1::2]
    places = {"validation": validation, "test": test}
    rows = np.delete(order, held) if split == "train" else order[places[split]]
    return Batch(
        tokens=1 + images[rows].reshape(-1, 64).astype(np.int32),
        lengths=np.full(rows.size, 64, np.int32),
        labels=labels[rows].astype(np.int32),
        weights=np.ones(rows.size, np.float32),
        slices=np.zeros(rows.size, np.int32),
    )


def _load() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        message = "the digits task reads scikit-learn's copy of the data: pip install scikit-learn"
        raise ImportError(message) from error
    data = load_digits()
    return data.images, data.target
