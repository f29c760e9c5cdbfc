"""Language modelling over bytes: any text, each byte asked for from those before it."""

import dataclasses
import functools
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt8

from experiments.errors import DataError
from experiments.tasks.base import Batch, Task, check_draw, check_split, require, require_int, rng

SHARES = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bytes(Task):
    """`path` is a file, or a folder whose files, but for hidden ones, are read in the order of
    their paths (links to files are followed, to folders not); without one it is the documentation
    that comes with Python (its topics, 0.5 MB: other versions of Python have other text, as the
    fingerprint says). The first 90% is for training, in windows of `length` drawn afresh for every
    step; validation and test are each half of the rest, cut into windows whose remainder is left
    out. Byte b is token b + 1 and class b."""

    head: ClassVar[str] = "token"
    causal: ClassVar[bool] = True
    token: ClassVar[str] = "byte"
    vocab_size: ClassVar[int] = 257
    classes: ClassVar[int] = 256
    length: int = 256
    path: str = ""

    def __post_init__(self):
        require_int("length", self.length, 1)
        require(isinstance(self.path, str), "path", "a file, a folder or ''", self.path)

    def size(self, split: str) -> int | None:
        check_split(split)
        return None if split == "train" else (_part(self, split).size - 1) // self.length

    def batch(self, seed: int, step: int, batch_size: int) -> Batch:
        check_draw(seed, step, batch_size)
        text = _part(self, "train")
        random = rng("bytes", "train", seed, step)
        return self._windows(text, random.integers(0, text.size - self.length, batch_size))

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        return self._windows(_part(self, split), indices * self.length)

    def _windows(self, text: UInt8[np.ndarray, "N"], starts: Int[np.ndarray, "B"]) -> Batch:
        rows = text[starts[:, None] + np.arange(self.length + 1)].astype(np.int32)
        shape = (starts.size, self.length)
        return Batch(
            tokens=rows[:, :-1] + 1,
            lengths=np.full(starts.size, self.length, np.int32),
            labels=rows[:, 1:],
            weights=np.ones(shape, np.float32),
            slices=np.zeros(starts.size, np.int32),
        )

    def baselines(self) -> dict[str, float]:
        """The most frequent byte of the training text, always and after each byte."""
        train, held = _part(self, "train"), _part(self, "validation")
        pairs = np.zeros((256, 256), np.int64)
        np.add.at(pairs, (train[:-1], train[1:]), 1)
        return {
            "most frequent byte": float(np.mean(held[1:] == pairs.sum(0).argmax())),
            "most frequent after the last": float(np.mean(held[1:] == pairs.argmax(1)[held[:-1]])),
        }

    def measures(self, loss: float) -> dict[str, float]:
        return {f"bits_per_{self.token}": loss / math.log(2)}

    def definition(self) -> dict[str, int | float | str | tuple]:
        # Where the text lies does not define it; what it holds does.
        return {"length": self.length}

    def content(self) -> bytes:
        return _text(self.path).tobytes()


def _part(task: Bytes, split: str) -> UInt8[np.ndarray, "N"]:
    """A split's share of the text."""
    check_split(split)
    text = _text(task.path)
    first, last = (int(share * text.size) for share in SHARES[split])
    need = task.length + 1
    if int(0.05 * text.size) < need:
        what = f"for windows of length={task.length} in each twentieth, got {text.size:,}"
        raise DataError(f"{task.path or 'the text'}: expected at least {20 * need:,} bytes, {what}")
    return text[first:last]


@functools.lru_cache(maxsize=2)
def _text(path: str) -> UInt8[np.ndarray, "N"]:
    data = b"\n".join(_files(Path(path))) if path else _topics()
    return np.frombuffer(data, np.uint8)


def _files(path: Path) -> list[bytes]:
    """Raises DataError if there are none that can be read."""
    try:
        return _read(path)
    except OSError as error:
        raise DataError(f"task.path: expected text that can be read: {error}") from None


def _read(path: Path) -> list[bytes]:
    if path.is_file():
        return [path.read_bytes()]
    if not path.is_dir():
        raise DataError(f"task.path: expected a file or a folder of text, got {str(path)!r}")
    inside = sorted(_inside(path))
    if not inside:
        raise DataError(f"task.path: expected files in the folder, {str(path)!r} has none")
    return [p.read_bytes() for p in inside]


def _inside(path: Path) -> Iterator[Path]:
    """The files of a folder, but for hidden ones. Raises OSError for a folder that cannot be read,
    which Path.rglob leaves out, and for a link to nothing."""

    def refuse(error: OSError) -> None:
        raise error

    shown = lambda names: [name for name in names if not name.startswith(".")]
    for folder, folders, files in os.walk(path, onerror=refuse):
        folders[:] = shown(folders)
        paths = [Path(folder, name) for name in shown(files)]
        yield from (p for p in paths if stat.S_ISREG(p.stat().st_mode))


def _topics() -> bytes:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()
