"""Document retrieval of Long Range Arena: does one paper cite the other (AAN)?"""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from experiments.tasks.base import require_int
from experiments.tasks.byte_rows import VOCABULARY, Texts
from experiments.tasks.fetched import Fetched
from experiments.tasks.files import counted, folder, present
from experiments.tasks.tsv import lines

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
ORIGIN = (
    "folder tsv_data of Long Range Arena's release, "
    "https://storage.googleapis.com/long-range-arena/lra_release.gz"
)
NAMES = ("label", "id1", "id2", "text1", "text2")
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


class Pairs(NamedTuple):
    texts: tuple[Texts, Texts]
    labels: Int32[np.ndarray, "N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(Fetched):
    """Two texts a row, tokens [B, 2, T] and lengths [B, 2], which one encoder reads (head "dual").
    Byte b is token b + 1, the first max_length bytes of each text; label 1 if they belong together.
    A text may be empty, and then has length 0. The sizes are those that S5 counts (Smith et al.
    2023, arXiv:2208.04933)."""

    head: ClassVar[str] = "dual"
    vocab_size: ClassVar[int] = VOCABULARY
    classes: ClassVar[int] = 2
    max_length: int = 4000
    train: int = 147_086
    validation: int = 18_090
    test: int = 17_437

    def __post_init__(self):
        super().__post_init__()
        for name in ("max_length", *FILES):
            require_int(name, getattr(self, name), 1)

    @property
    def length(self) -> int:
        return self.max_length

    def labels(self, split: str) -> Int32[np.ndarray, "N"]:
        return self._read(split).labels

    def tokens(self, split: str, indices: Int[np.ndarray, "B"]):
        texts = self._read(split).texts
        both = [text.tokens(indices, self.max_length) for text in texts]
        return tuple(np.stack(parts, 1) for parts in zip(*both, strict=True))

    def content(self) -> bytes:
        parts = [self._read(split) for split in FILES]
        return b"".join(
            x.tobytes() for pairs in parts for x in (*pairs.texts[0], *pairs.texts[1], pairs.labels)
        )

    def _read(self, split: str) -> Pairs:
        return read(self.data_dir, split, self.max_length, getattr(self, split))


@functools.lru_cache(maxsize=3)
def read(data_dir: str, split: str, max_length: int, count: int) -> Pairs:
    """All pairs of a split. Raises DataError with the file and line that is not as expected."""
    root = folder(data_dir, holding=", ".join(FILES.values()), origin=ORIGIN)
    path = present(root / FILES[split], origin=ORIGIN)
    labels, texts = [], ([], [])
    for label, (_, _, *both) in lines(path, names=NAMES, labels=LABELS):
        labels.append(label)
        for text, column in zip(both, texts, strict=True):
            column.append(text.encode()[:max_length])
    counted(len(labels), count, "pairs", where=path, origin=ORIGIN)
    columns = tuple(Texts.of(column, max_length) for column in texts)
    return Pairs(columns, np.array(labels, np.int32))
