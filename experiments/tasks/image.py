"""Image classification of Long Range Arena: CIFAR-10 (Krizhevsky 2009) in grey, pixel by pixel."""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Int32, UInt8

from experiments.errors import DataError
from experiments.tasks.base import require_int, rng
from experiments.tasks.fetched import Fetched
from experiments.tasks.files import counted, folder, present

ORIGIN = "cifar-10-batches-bin of https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, unpacked"
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
ROW = 1 + 3 * 1024  # a label, then the red, green and blue pixels
GREY = np.array([0.2989, 0.5870, 0.1140])  # ITU-R BT.601, as tf.image.rgb_to_grayscale has it


class Grey(NamedTuple):
    pixels: UInt8[np.ndarray, "N 1024"]
    labels: Int32[np.ndarray, "N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image(Fetched):
    """Row by row, a pixel's luma v in 0..255 is token v + 1. Validation is drawn from the training
    images, always the same ones; LRA's are the last tenth in the order of its library."""

    vocab_size: ClassVar[int] = 257
    length: ClassVar[int] = 1024
    classes: ClassVar[int] = 10
    train: int = 45_000
    validation: int = 5_000
    test: int = 10_000

    def __post_init__(self):
        super().__post_init__()
        for name in ("train", "validation", "test"):
            require_int(name, getattr(self, name), 1)

    def labels(self, split: str) -> Int32[np.ndarray, "N"]:
        images, rows = self._where(split)
        return images.labels[rows]

    def tokens(self, split: str, indices: Int[np.ndarray, "B"]):
        images, rows = self._where(split)
        tokens = images.pixels[rows[indices]].astype(np.int32) + 1
        return tokens, np.full(len(indices), self.length, np.int32)

    def content(self) -> bytes:
        return b"".join(x.tobytes() for part in (True, False) for x in self._read(part))

    def _read(self, training: bool) -> Grey:
        if training:
            return read(self.data_dir, TRAIN, self.train + self.validation)
        return read(self.data_dir, ("test_batch.bin",), self.test)

    def _where(self, split: str) -> tuple[Grey, Int[np.ndarray, "N"]]:
        if split == "test":
            return self._read(False), np.arange(self.test)
        order = rng("image", "split").permutation(self.train + self.validation)
        rows = order[: self.train] if split == "train" else order[self.train :]
        return self._read(True), rows


@functools.lru_cache(maxsize=2)
def read(data_dir: str, names: tuple[str, ...], count: int) -> Grey:
    """All images of these files, which must be `count`. Raises DataError."""
    holding = "data_batch_1.bin to data_batch_5.bin and test_batch.bin"
    root = folder(data_dir, holding=holding, origin=ORIGIN)
    parts = [_file(root / name) for name in names]
    images = Grey(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    what = f"images in {names[0]}{' ...' * (len(names) > 1)}"
    counted(images.labels.size, count, what, where=root, origin=ORIGIN)
    return images


def _file(path: Path) -> Grey:
    data = np.fromfile(present(path, origin=ORIGIN), np.uint8)
    if data.size % ROW:
        hint = "fetch it again if it is half downloaded"
        raise DataError(
            f"{path}: expected a multiple of {ROW:,} bytes, one label and 3,072 pixels each, got "
            f"{data.size:,}; {hint} ({ORIGIN})"
        )
    rows = data.reshape(-1, ROW)
    labels = rows[:, 0].astype(np.int32)
    if (wrong := np.flatnonzero(labels > 9)).size:
        row = int(wrong[0])
        raise DataError(f"{path}: expected labels 0..9, got {labels[row]} for image {row}")
    luma = np.einsum("c,ncp->np", GREY, rows[:, 1:].reshape(-1, 3, 1024))
    # TensorFlow goes through [0, 1] and back by 255.5, which it cuts: white stays 255.
    return Grey((luma * (255.5 / 255)).astype(np.uint8), labels)
