"""Pathfinder (Linsley et al. 2018, arXiv:1805.08315): are two dots on one dashed curve?"""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32, UInt8

from experiments.tasks.base import (
    MOST_DRAWN,
    Batch,
    Task,
    check_draw,
    check_split,
    majority,
    require,
    require_int,
    rng,
    shuffled,
)
from experiments.tasks.drawn import Drawn, whole_split
from experiments.tasks.patches import patches
from experiments.tasks.pathfinder_files import FOLDERS, read
from experiments.tasks.pathfinder_images import GEOMETRIES, draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pathfinder(Drawn):
    """Pixel by pixel, value v in 0..255 is token v + 1; label 1 if the dots are connected. `dashes`
    of each target curve make it Long Range Arena's easy (6), intermediate (9) or hard (14); without
    `distractors` it is easier still.

    Half connected, by a generator of our own; example numbers 2 i and 2 i + 1 are twins, of the
    same dots and opposite labels (`pathfinder_images.draw`), and follow each other in training:
    from images apart from their twins a small model was seen to learn nothing. Rows of a test are
    such pairs too, which intervals take for independent. Drawn afresh for every step, or with
    `train` so many, an even number, for all. Or read, if data_dir names LRA's folder (pathfinder32,
    64 or 128); validation and test are then a tenth each, whatever the fields say.
    """

    head: ClassVar[str] = "classification"
    stream: ClassVar[str] = "pathfinder"
    vocab_size: ClassVar[int] = 257
    classes: ClassVar[int] = 2
    resolution: int = 32
    dashes: int = 14
    distractors: bool = True  # short curves beside the two long ones, where there is room
    data_dir: str = ""
    train: int = 0
    validation: int = 1_000
    test: int = 1_000

    def __post_init__(self):
        super().__post_init__()
        for name, known in (("resolution", GEOMETRIES), ("dashes", FOLDERS)):
            value = getattr(self, name)
            expected = f"one of {', '.join(map(str, known))}"
            require(type(value) is int and value in known, name, expected, value)
        require_int("train", self.train, 0, MOST_DRAWN)
        require(self.train % 2 == 0, "train", "an even number, for twins", self.train)
        have = self.distractors
        require(isinstance(have, bool), "distractors", "True or False", have)
        need = "True with data_dir, whose images have them"
        require(have or not self.data_dir, "distractors", need, have)
        require(isinstance(self.data_dir, str), "data_dir", "a folder or ''", self.data_dir)

    @property
    def length(self) -> int:
        return self.resolution**2

    def size(self, split: str) -> int | None:
        check_split(split)
        if self.data_dir:
            return self._files[split].labels.size
        return self.train or None if split == "train" else super().size(split)

    def batch(self, seed: int, step: int, batch_size: int) -> Batch:
        if self.data_dir:
            return Task.batch(self, seed, step, batch_size)
        check_draw(seed, step, batch_size)
        number = step * batch_size + np.arange(batch_size)
        if not self.train:
            # No image is seen twice, so that none is looked for among those held out.
            return self.draw(rng(self.stream, "train", seed, step), number)
        pair, twin = np.divmod(number, 2)
        return self.examples("train", 2 * shuffled(seed, pair, self.train // 2) + twin)

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        if not self.data_dir:
            return whole_split(self, split)[indices]
        pixels, labels = self._files[split]
        return _batch(pixels[indices], labels[indices])

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        # Twins follow each other; of a pair that the batch cuts in two, one is drawn for nothing.
        rows = number - number[0] // 2 * 2
        geometry = GEOMETRIES[self.resolution]
        if not self.distractors:
            geometry = dataclasses.replace(geometry, short=0)
        images = draw(random, rows[-1] // 2 + 1, geometry, self.dashes)
        return _batch(images.pixels[rows].reshape(rows.size, -1), (number % 2).astype(np.int32))

    def baselines(self) -> dict[str, float]:
        labels = self.examples("validation", np.arange(self.size("validation"))).labels
        return {"chance": 1 / 2, "majority class": majority(labels)}

    def definition(self) -> dict[str, int | float | str | tuple]:
        # Where files lie does not define the data; what they hold does.
        return {**super().definition(), "data_dir": bool(self.data_dir)}

    def content(self) -> bytes:
        if not self.data_dir:
            return super().content()
        return b"".join(x.tobytes() for part in self._files.values() for x in part)

    @property
    def _files(self):
        return read(self.data_dir, self.resolution, self.dashes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathfinderPatches(Pathfinder):
    """The same images and splits as squares of `patch` x `patch` pixels, row by row, each a vector
    of numbers in [-1, 1]."""

    vocab_size: ClassVar[None] = None
    patch: int = 2

    def __post_init__(self):
        super().__post_init__()
        known = (1, 2, 4, 8)  # they divide every resolution
        ok = type(self.patch) is int and self.patch in known
        require(ok, "patch", f"one of {', '.join(map(str, known))}", self.patch)

    @property
    def length(self) -> int:
        return (self.resolution // self.patch) ** 2

    @property
    def token_width(self) -> int:
        return self.patch**2

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        batch = super().examples(split, indices)
        return self._cut(batch) if self.data_dir else batch  # drawn ones are cut when drawn

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        return self._cut(super().draw(random, number))

    def _cut(self, pixels: Batch) -> Batch:
        values = ((pixels.tokens - 1) / 127.5 - 1).astype(np.float32)
        tokens = patches(values.reshape(-1, self.resolution, self.resolution), self.patch)
        lengths = np.full_like(pixels.lengths, self.length)
        return dataclasses.replace(pixels, tokens=tokens, lengths=lengths)


def _batch(pixels: UInt8[np.ndarray, "B T"], labels: Int32[np.ndarray, "B"]) -> Batch:
    rows, length = pixels.shape
    return Batch(
        tokens=pixels.astype(np.int32) + 1,
        lengths=np.full(rows, length, np.int32),
        labels=labels,
        weights=np.ones(rows, np.float32),
        slices=np.zeros(rows, np.int32),
    )
