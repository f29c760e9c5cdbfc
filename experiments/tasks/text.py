"""Text classification of Long Range Arena: is a film review (Maas et al. 2011) good, by bytes?"""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from experiments.errors import DataError
from experiments.tasks.base import require, require_int, rng
from experiments.tasks.byte_rows import VOCABULARY, Texts
from experiments.tasks.fetched import Fetched
from experiments.tasks.files import counted, folder, matching, present
from experiments.tasks.tsv import lines

ORIGIN = "aclImdb of https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, unpacked"
CLASSES = ("neg", "pos")
LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1}


class Reviews(NamedTuple):
    texts: Texts
    labels: Int32[np.ndarray, "N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Fetched):
    """Byte b is token b + 1, the first max_length bytes of a review, label 1 if it is positive.

    Long Range Arena chooses on the test reviews; here `validation` of the training reviews, as
    many of each class as can be, are held out for that: `train` and `validation` together are the
    folder's. Half of what is read must be of each class, as half of the published reviews is.

    Where there is a train.tsv or test.tsv, these two are read in place of folders: lines of a label
    (0, neg, 1 or pos), a tab and a text in UTF-8, without a header.
    """

    token: ClassVar[str] = "byte"
    vocab_size: ClassVar[int] = VOCABULARY
    classes: ClassVar[int] = 2
    max_length: int = 4000
    train: int = 22_500
    validation: int = 2_500
    test: int = 25_000

    def __post_init__(self):
        super().__post_init__()
        for name in ("max_length", "train", "validation", "test"):
            require_int(name, getattr(self, name), 1)
        total = self.train + self.validation
        require(total % 2 == 0, "train", "an even number with validation, half per class", total)
        require(self.test % 2 == 0, "test", "an even number, half per class", self.test)

    @property
    def length(self) -> int:
        return self.max_length

    def labels(self, split: str) -> Int32[np.ndarray, "N"]:
        part, rows = self._where(split)
        return part.labels[rows]

    def tokens(self, split: str, indices: Int[np.ndarray, "B"]):
        part, rows = self._where(split)
        return part.texts.tokens(rows[indices], self.max_length)

    def content(self) -> bytes:
        parts = [self._read(name) for name in ("train", "test")]
        return b"".join(x.tobytes() for texts, labels in parts for x in (*texts, labels))

    def _read(self, part: str) -> Reviews:
        count = self.test if part == "test" else self.train + self.validation
        return read(self.data_dir, part, self.max_length, count)

    def _where(self, split: str) -> tuple[Reviews, Int[np.ndarray, "N"]]:
        """Where a split lies."""
        if split == "test":
            return self._read("test"), np.arange(self.test)
        part, total = self._read("train"), self.train + self.validation
        # Evenly spaced places in an order by class.
        held = np.linspace(0, total, self.validation, endpoint=False).astype(int)
        order = rng("text", "split").permutation(total)
        order = order[np.argsort(part.labels[order], kind="stable")]
        return part, order[held] if split == "validation" else np.delete(order, held)


@functools.lru_cache(maxsize=2)
def read(data_dir: str, part: str, max_length: int, count: int) -> Reviews:
    """All reviews of train or test, which must be `count`: those of a class lie together, in the
    order of their files' names or of their lines."""
    holding = "train/pos/*.txt and so on for neg and test, or train.tsv and test.tsv"
    root = folder(data_dir, holding=holding, origin=ORIGIN)
    as_lines = any((root / name).exists() for name in ("train.tsv", "test.tsv"))
    texts = _lines(root / f"{part}.tsv") if as_lines else _files(root / part)
    for where, found in texts.items():
        counted(len(found), count // 2, "reviews", where=where, origin=ORIGIN)
    labels = np.repeat(np.arange(2, dtype=np.int32), count // 2)
    return Reviews(Texts.of(itertools.chain(*texts.values()), max_length), labels)


def _files(folder: Path) -> dict[str, list[bytes]]:
    """The texts of each class, by where they are."""
    files = {str(folder / name): matching(folder / name, "*.txt") for name in CLASSES}
    whole = lambda path: present(path, origin=ORIGIN).read_bytes()
    return {where: [whole(path) for path in paths] for where, paths in files.items()}


def _lines(path: Path) -> dict[str, list[bytes]]:
    """The texts of each class, by where they are."""
    texts = [], []
    rows = lines(present(path, origin=ORIGIN), names=("label", "text"), labels=LABELS)
    for number, (label, (text,)) in enumerate(rows, 1):
        if not text:
            raise DataError(f"{path}:{number}: expected a text, got none")
        texts[label].append(text.encode())
    return {f"{path}, class {name}": found for name, found in zip(CLASSES, texts, strict=True)}
