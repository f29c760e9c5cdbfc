"""Texts as rows of bytes: byte b is token b + 1, since id 0 is padding."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Int, Int32, Int64, UInt8

VOCABULARY = 257


class Texts(NamedTuple):
    """One after the other, for most are shorter than the longest."""

    data: UInt8[np.ndarray, "bytes"]
    starts: Int64[np.ndarray, "N"]
    lengths: Int32[np.ndarray, "N"]

    @classmethod
    def of(cls, texts: Iterable[bytes], max_length: int) -> Self:
        """The first max_length bytes of each."""
        cut = [text[:max_length] for text in texts]
        lengths = np.array([len(text) for text in cut], np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        return cls(np.frombuffer(b"".join(cut), np.uint8), starts, lengths)

    def tokens(
        self, indices: Int[np.ndarray, "B"], width: int
    ) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, "B"]]:
        """Rows of this width, and their lengths."""
        lengths = self.lengths[indices]
        rows = np.zeros((len(indices), width), np.int32)
        for row, start, length in zip(rows, self.starts[indices], lengths, strict=True):
            row[:length] = self.data[start : start + length].astype(np.int32) + 1
        return rows, lengths
