"""Images cut into patches (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

import math

import numpy as np
from jaxtyping import Float32


def patches(
    images: Float32[np.ndarray, "B side side"], patch: int
) -> Float32[np.ndarray, "B T patch*patch"]:
    """Squares of `patch` x `patch` pixels, row by row, each a vector of its pixels row by row; a
    side must be a multiple of `patch`."""
    rows, side, _ = images.shape
    count = side // patch
    cut = images.reshape(rows, count, patch, count, patch).transpose(0, 1, 3, 2, 4)
    return cut.reshape(rows, count**2, patch**2)


def joined(
    tokens: Float32[np.ndarray, "B T patch*patch"], patch: int
) -> Float32[np.ndarray, "B side side"]:
    """The images that `patches` cut."""
    rows, length, _ = tokens.shape
    count = math.isqrt(length)
    cells = tokens.reshape(rows, count, count, patch, patch).transpose(0, 1, 3, 2, 4)
    return cells.reshape(rows, count * patch, count * patch)
