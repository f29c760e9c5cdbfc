"""Text classification of Long Range Arena: is a film review (Maas et al. 2011) good, by bytes?"""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from experiments.errors import DataError
from experiments.tasks.base import require_int, rng
from experiments.tasks.byte_rows import VOCABULARY, Texts
from experiments.tasks.fetched import Fetched
from experiments.tasks.files import folder, present

ORIGIN = "aclImdb of https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, unpacked"
CLASSES = ("neg", "pos")


class Reviews(NamedTuple):
    texts: Texts
    labels: Int32[np.ndarray, "N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Fetched):
    """Byte b is token b + 1, the first max_length bytes of a review, label 1 if it is positive.

    Long Range Arena chooses on the test reviews; here `validation` of the training reviews, as
    many of each class as can be, are held out for that.
    """

    token: ClassVar[str] = "byte"
    vocab_size: ClassVar[int] = VOCABULARY
    classes: ClassVar[int] = 2
    max_length: int = 4000
    validation: int = 2_500

    def __post_init__(self):
        super().__post_init__()
        require_int("max_length", self.max_length, 1)
        require_int("validation", self.validation, 1)

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
        parts = [read(self.data_dir, name, self.max_length) for name in ("train", "test")]
        return b"".join(x.tobytes() for texts, labels in parts for x in (*texts, labels))

    def _where(self, split: str) -> tuple[Reviews, Int[np.ndarray, "N"]]:
        """Where a split lies."""
        part = read(self.data_dir, "test" if split == "test" else "train", self.max_length)
        total = part.labels.size
        if split == "test":
            return part, np.arange(total)
        if self.validation >= total:
            expected = f"expected more reviews than validation={self.validation}"
            raise DataError(f"{self.data_dir}/train: {expected}, got {total}")
        # Evenly spaced places in an order by class.
        held = np.linspace(0, total, self.validation, endpoint=False).astype(int)
        order = rng("text", "split").permutation(total)
        order = order[np.argsort(part.labels[order], kind="stable")]
        return part, order[held] if split == "validation" else np.delete(order, held)


@functools.lru_cache(maxsize=2)
def read(data_dir: str, part: str, max_length: int) -> Reviews:
    """All reviews of train or test, in the order of their files' names."""
    holding = "train/pos/*.txt, train/neg/*.txt, test/pos/*.txt and test/neg/*.txt"
    root = folder(data_dir, holding=holding, origin=ORIGIN)
    files = [_files(root / part / name) for name in CLASSES]
    labels = np.repeat(np.arange(2, dtype=np.int32), [len(found) for found in files])
    texts = [present(path, origin=ORIGIN).read_bytes() for found in files for path in found]
    return Reviews(Texts.of(texts, max_length), labels)


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.txt"))
    if not found:
        raise DataError(f"{folder}: expected reviews *.txt, there are none ({ORIGIN})")
    return found
