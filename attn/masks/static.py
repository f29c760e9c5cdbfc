"""Static terms: integers only, hashable; they tell at trace time which blocks are empty."""

from collections.abc import Iterable

import numpy as np

from attn._axes import namespace
from attn.masks.fields import LARGEST, keep, natural
from attn.masks.language import Mask, term


@term
class Causal(Mask):
    """j <= i + offset. Top-left aligned at offset 0; `Causal(S - T)` is bottom-right aligned.

    The offset moves the mask's edge, not the queries: `Window`, other patterns, biases and Luong's
    local "m" count from i. In variants with an order of their own (decays, cells, chunks) query i
    is at position i + offset.
    """

    offset: int = 0

    def __post_init__(self):
        keep(self, offset=-LARGEST)

    def _meet(self, other):
        alike = type(self) is type(other) is Causal  # a mask that inherits from it sees others
        return Causal(min(self.offset, other.offset)) if alike else None

    def sees(self, i, j):
        return j <= i + self.offset

    def tiles(self, i0, i1, j0, j1):
        return j0 <= i1 + self.offset, j1 <= i0 + self.offset


@term
class Window(Mask):
    """i - left <= j <= i + right, both ends inclusive: Window(5, 0) is the token and the five
    before.

    Counted from i, whatever the offset of a `Causal` beside it.
    """

    left: int
    right: int

    def __post_init__(self):
        keep(self, left=0, right=0)

    def sees(self, i, j):
        return (j >= i - self.left) & (j <= i + self.right)

    def tiles(self, i0, i1, j0, j1):
        some = (j1 >= i0 - self.left) & (j0 <= i1 + self.right)
        return some, (j0 >= i1 - self.left) & (j1 <= i0 + self.right)


@term
class Prefix(Mask):
    """j < n: the first n keys are seen by all (prefix language models: `Causal() | Prefix(n)`)."""

    n: int

    def __post_init__(self):
        keep(self, n=0)

    def sees(self, i, j):
        return (j < self.n) & (i == i)

    def tiles(self, i0, i1, j0, j1):
        return (j0 < self.n) & (i0 == i0), (j1 < self.n) & (i0 == i0)


@term
class Global(Mask):
    """i or j is one of `positions`: a global token sees all and is seen by all."""

    positions: tuple[int, ...]

    def __post_init__(self):
        if not isinstance(self.positions, Iterable):
            raise TypeError(f"positions: expected integers, got {self.positions!r}")
        positions = sorted({natural("positions", p) for p in self.positions})
        object.__setattr__(self, "positions", tuple(positions))

    def sees(self, i, j):
        xp = namespace(i, j)
        positions = np.asarray(self.positions, np.int32)
        return xp.isin(i, positions) | xp.isin(j, positions)

    def tiles(self, i0, i1, j0, j1):
        count = lambda a, b: (
            np.searchsorted(self.positions, b, "right") - np.searchsorted(self.positions, a, "left")
        )
        rows, cols = count(i0, i1), count(j0, j1)
        return (rows > 0) | (cols > 0), (rows == i1 - i0 + 1) | (cols == j1 - j0 + 1)
