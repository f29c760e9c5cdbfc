"""Document retrieval of Long Range Arena: does one paper cite the other (AAN)?"""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from experiments.errors import DataError
from experiments.tasks.base import require_int
from experiments.tasks.byte_rows import VOCABULARY, Texts
from experiments.tasks.fetched import Fetched
from experiments.tasks.files import folder, present

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
ORIGIN = (
    "folder tsv_data of Long Range Arena's release, "
    "https://storage.googleapis.com/long-range-arena/lra_release.gz"
)
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


class Pairs(NamedTuple):
    texts: tuple[Texts, Texts]
    labels: Int32[np.ndarray, "N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(Fetched):
    """Two texts a row, tokens [B, 2, T] and lengths [B, 2], which one encoder reads (head "dual").
    Byte b is token b + 1, the first max_length bytes of each text; label 1 if they belong together.
    A text may be empty, and then has length 0."""

    head: ClassVar[str] = "dual"
    vocab_size: ClassVar[int] = VOCABULARY
    classes: ClassVar[int] = 2
    max_length: int = 4000

    def __post_init__(self):
        super().__post_init__()
        require_int("max_length", self.max_length, 1)

    @property
    def length(self) -> int:
        return self.max_length

    def labels(self, split: str) -> Int32[np.ndarray, "N"]:
        return read(self.data_dir, split, self.max_length).labels

    def tokens(self, split: str, indices: Int[np.ndarray, "B"]):
        texts = read(self.data_dir, split, self.max_length).texts
        both = [text.tokens(indices, self.max_length) for text in texts]
        return tuple(np.stack(parts, 1) for parts in zip(*both, strict=True))

    def content(self) -> bytes:
        parts = [read(self.data_dir, split, self.max_length) for split in FILES]
        return b"".join(
            x.tobytes() for pairs in parts for x in (*pairs.texts[0], *pairs.texts[1], pairs.labels)
        )


@functools.lru_cache(maxsize=3)
def read(data_dir: str, split: str, max_length: int) -> Pairs:
    """All pairs of a split. Raises DataError with the file and line that is not as expected."""
    root = folder(data_dir, holding=", ".join(FILES.values()), origin=ORIGIN)
    path = present(root / FILES[split], origin=ORIGIN)
    labels, texts = [], ([], [])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            label, *both = _parse(line, path, number)
            labels.append(label)
            for text, column in zip(both, texts, strict=True):
                column.append(text[:max_length])
    columns = tuple(Texts.of(column, max_length) for column in texts)
    return Pairs(columns, np.array(labels, np.int32))


def _parse(line: bytes, path: Path, number: int) -> tuple[int, bytes, bytes]:
    """Label, id1, id2, text1, text2."""
    where = f"{path}:{number}"
    try:
        columns = line.decode().rstrip("\r\n").split("\t")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected UTF-8, got byte 0x{line[error.start]:02x}") from None
    if len(columns) != 5:
        names = "label, id1, id2, text1, text2"
        got = f"{len(columns)}; fetch the file again if it is half downloaded"
        raise DataError(f"{where}: expected 5 columns ({names}) between tabs, got {got}")
    if columns[0] not in LABELS:
        raise DataError(f"{where}: expected a label 0 or 1, got {columns[0][:20]!r}")
    return LABELS[columns[0]], columns[3].encode(), columns[4].encode()
