"""Terms that repeat: every n-th token, each block's last tokens, powers of two."""

import numpy as np

from attn.masks.fields import LARGEST, keep
from attn.masks.language import Mask, term


@term
class Dilated(Mask):
    """The token itself and `window` keys on each side, `rate` apart (Longformer, Beltagy et al.
    2020, arXiv:2004.05150)."""

    window: int
    rate: int

    def __post_init__(self):
        keep(self, window=0, rate=1)

    @property
    def _reach(self) -> int:
        return min(self.window * self.rate, LARGEST)

    def sees(self, i, j):
        reach = self._reach
        return (j >= i - reach) & (j <= i + reach) & ((i - j) % self.rate == 0)

    def tiles(self, i0, i1, j0, j1):
        reach = self._reach
        lo, hi = np.maximum(i0 - j1, -reach), np.minimum(i1 - j0, reach)
        inside = (i0 - j1 >= -reach) & (i1 - j0 <= reach)
        return (lo <= hi) & has_multiple(lo, hi, self.rate), inside & (self.rate == 1)


@term
class Strided(Mask):
    """(i - j) is a multiple of `stride` (Child et al. 2019, arXiv:1904.10509)."""

    stride: int

    def __post_init__(self):
        keep(self, stride=1)

    def sees(self, i, j):
        return (i - j) % self.stride == 0

    def tiles(self, i0, i1, j0, j1):
        some = has_multiple(i0 - j1, i1 - j0, self.stride)
        return some, np.full_like(some, self.stride == 1)


@term
class Fixed(Mask):
    """The same block, or one of the last `summary` keys of any block (Sparse Transformer's fixed
    pattern, Child et al. 2019, arXiv:1904.10509). `Fixed(b, 0)` is block-local."""

    block: int
    summary: int

    def __post_init__(self):
        _keep_block(self)

    def sees(self, i, j):
        return (i // self.block == j // self.block) | (j % self.block >= self.block - self.summary)

    def tiles(self, *bounds):
        some, every = same_block(*bounds, self.block)
        summary, all_summary = Summary(self.block, self.summary).tiles(*bounds)
        return some | summary, every | all_summary


@term
class Summary(Mask):
    """Keys that are among the last `summary` of their block (Child et al. 2019)."""

    block: int
    summary: int

    def __post_init__(self):
        _keep_block(self)

    def sees(self, i, j):
        return (i == i) & (j % self.block >= self.block - self.summary)

    def tiles(self, i0, i1, j0, j1):
        b, c = self.block, self.summary
        # a summary column in [j0, j1]: it ends past its block's first b - c columns
        some = (j1 % b >= b - c) | ((j1 // b > j0 // b) & (c > 0))
        every = (j0 // b == j1 // b) & (j0 % b >= b - c) | (c == b)
        return np.broadcast_arrays(some, every, i0 + j0)[:2]


@term
class LogDistance(Mask):
    """|i - j| is 0 or a power of two (LogSparse, Li et al. 2019, arXiv:1907.00235)."""

    def sees(self, i, j):
        apart = abs(i - j)
        return (apart & (apart - 1)) == 0

    def tiles(self, i0, i1, j0, j1):
        # distances in the block reach from `least` to `most`
        least = np.maximum(np.maximum(i0 - j1, j0 - i1), 0)
        most = np.maximum(i1 - j0, j1 - i0)
        power = 2 ** np.floor(np.log2(np.maximum(most, 1))).astype(np.int64)
        return (least == 0) | (power >= least), most <= 2


def _keep_block(mask: Fixed | Summary) -> None:
    keep(mask, block=1, summary=0)
    if mask.summary > mask.block:
        raise ValueError(f"summary: expected at most block={mask.block}, got {mask.summary}")


def same_block(i0, i1, j0, j1, size):
    """`tiles` of i // size == j // size."""
    i0, i1, j0, j1 = (x // size for x in (i0, i1, j0, j1))
    return (i0 <= j1) & (j0 <= i1), (i0 == i1) & (j0 == j1) & (i0 == j0)


def has_multiple(lo, hi, n):
    """Whether [lo, hi] holds a multiple of n."""
    return hi // n * n >= lo
