"""Static terms: integers only, hashable; they tell at trace time which blocks are empty."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from attn.masks.language import LARGEST, Mask, _natural, _term


@_term
class Causal(Mask):
    """j <= i + offset. Top-left aligned at offset 0; `Causal(S - T)` is bottom-right aligned."""

    offset: int = 0

    def __post_init__(self):
        object.__setattr__(self, "offset", _natural("offset", self.offset, -LARGEST))

    def _meet(self, other):
        return Causal(min(self.offset, other.offset)) if isinstance(other, Causal) else None

    def _at(self, i, j):
        return j <= i + self.offset

    def _tiles(self, i0, i1, j0, j1):
        return j0 <= i1 + self.offset, j1 <= i0 + self.offset


@_term
class Window(Mask):
    """i - left <= j <= i + right, both ends inclusive: Window(5, 0) sees itself and five before."""

    left: int
    right: int

    def __post_init__(self):
        for name in ("left", "right"):
            object.__setattr__(self, name, _natural(name, getattr(self, name)))

    def _at(self, i, j):
        return (j >= i - self.left) & (j <= i + self.right)

    def _tiles(self, i0, i1, j0, j1):
        some = (j1 >= i0 - self.left) & (j0 <= i1 + self.right)
        return some, (j0 >= i1 - self.left) & (j1 <= i0 + self.right)


@_term
class Dilated(Mask):
    """Itself and `window` keys on each side, `rate` apart (Longformer, Beltagy et al. 2020,
    arXiv:2004.05150)."""

    window: int
    rate: int

    def __post_init__(self):
        object.__setattr__(self, "window", _natural("window", self.window))
        object.__setattr__(self, "rate", _natural("rate", self.rate, 1))

    def _at(self, i, j):
        reach = self.window * self.rate
        return (j >= i - reach) & (j <= i + reach) & ((i - j) % self.rate == 0)

    def _tiles(self, i0, i1, j0, j1):
        reach = self.window * self.rate
        lo, hi = np.maximum(i0 - j1, -reach), np.minimum(i1 - j0, reach)
        inside = (i0 - j1 >= -reach) & (i1 - j0 <= reach)
        return (lo <= hi) & _has_multiple(lo, hi, self.rate), inside & (self.rate == 1)


@_term
class Prefix(Mask):
    """j < n: the first n keys are seen by all (prefix language models: `Causal() | Prefix(n)`)."""

    n: int

    def __post_init__(self):
        object.__setattr__(self, "n", _natural("n", self.n))

    def _at(self, i, j):
        return (j < self.n) & (i == i)

    def _tiles(self, i0, i1, j0, j1):
        return (j0 < self.n) & (i0 == i0), (j1 < self.n) & (i0 == i0)


@_term
class Global(Mask):
    """i or j is one of `positions`: a global token sees all and is seen by all."""

    positions: tuple[int, ...]

    def __post_init__(self):
        positions = sorted({_natural("positions", p) for p in self.positions})
        object.__setattr__(self, "positions", tuple(positions))

    def _at(self, i, j):
        xp = np if isinstance(i, np.ndarray) and isinstance(j, np.ndarray) else jnp
        positions = np.asarray(self.positions, np.int32)
        return xp.isin(i, positions) | xp.isin(j, positions)

    def _tiles(self, i0, i1, j0, j1):
        count = lambda a, b: (
            np.searchsorted(self.positions, b, "right") - np.searchsorted(self.positions, a, "left")
        )
        rows, cols = count(i0, i1), count(j0, j1)
        return (rows > 0) | (cols > 0), (rows == i1 - i0 + 1) | (cols == j1 - j0 + 1)


@_term
class Strided(Mask):
    """(i - j) is a multiple of `stride` (Child et al. 2019, arXiv:1904.10509)."""

    stride: int

    def __post_init__(self):
        object.__setattr__(self, "stride", _natural("stride", self.stride, 1))

    def _at(self, i, j):
        return (i - j) % self.stride == 0

    def _tiles(self, i0, i1, j0, j1):
        some = _has_multiple(i0 - j1, i1 - j0, self.stride)
        return some, np.full_like(some, self.stride == 1)


@_term
class Summary(Mask):
    """Keys that are among the last `summary` of their block (Child et al. 2019)."""

    block: int
    summary: int

    def __post_init__(self):
        Fixed(self.block, self.summary)  # refuses the same

    def _at(self, i, j):
        return (i == i) & (j % self.block >= self.block - self.summary)

    def _tiles(self, i0, i1, j0, j1):
        b, c = self.block, self.summary
        some = (j1 % b >= b - c) | ((j1 // b > j0 // b) & (c > 0))
        every = (j0 // b == j1 // b) & (j0 % b >= b - c) | (c == b)
        return np.broadcast_arrays(some, every, i0 + j0)[:2]


@_term
class Local2D(Mask):
    """At most `reach` rows and columns away in a height x width raster (Parmar et al. 2018,
    arXiv:1802.05751, in squares); positions past the raster see nothing."""

    height: int
    width: int
    reach: int

    def __post_init__(self):
        object.__setattr__(self, "height", _natural("height", self.height, 1))
        object.__setattr__(self, "width", _natural("width", self.width, 1))
        object.__setattr__(self, "reach", _natural("reach", self.reach))

    def _at(self, i, j):
        w, size = self.width, self.height * self.width
        inside = (i >= 0) & (i < size) & (j >= 0) & (j < size)
        near = (abs(i // w - j // w) <= self.reach) & (abs(i % w - j % w) <= self.reach)
        return inside & near

    def _tiles(self, i0, i1, j0, j1):
        w, size = self.width, self.height * self.width
        apart = np.maximum(i0 // w - j1 // w, j0 // w - i1 // w)
        some = (apart <= self.reach) & (i0 < size) & (j0 < size)
        return some, some & False


@_term
class Coarse(Mask):
    """Blocks of `size` queries and keys as `mask` has them: (i, j) is (i // size, j // size)."""

    mask: Mask = dataclasses.field(metadata={"child": True})
    size: int

    def __post_init__(self):
        if not isinstance(self.mask, Mask) or not self.mask.static:
            raise TypeError("mask: expected a static mask (no arrays) of blocks")
        object.__setattr__(self, "size", _natural("size", self.size, 1))

    def sized(self, T, S):
        return Coarse(self.mask.sized(-(-T // self.size), -(-S // self.size)), self.size)

    def _at(self, i, j):
        return self.mask._at(i // self.size, j // self.size)

    def _tiles(self, *bounds):
        return self.mask._tiles(*(x // self.size for x in bounds))


@_term
class LogDistance(Mask):
    """|i - j| is 0 or a power of two (LogSparse, Li et al. 2019, arXiv:1907.00235)."""

    def _at(self, i, j):
        apart = abs(i - j)
        return (apart & (apart - 1)) == 0

    def _tiles(self, i0, i1, j0, j1):
        # distances in the block reach from `least` to `most`
        least = np.maximum(np.maximum(i0 - j1, j0 - i1), 0)
        most = np.maximum(i1 - j0, j1 - i0)
        power = 2 ** np.floor(np.log2(np.maximum(most, 1))).astype(np.int64)
        return (least == 0) | (power >= least), most <= 2


@_term
class Fixed(Mask):
    """The same block, or one of the last `summary` keys of any block (Sparse Transformer's fixed
    pattern, Child et al. 2019, arXiv:1904.10509). `Fixed(b, 0)` is block-local."""

    block: int
    summary: int

    def __post_init__(self):
        object.__setattr__(self, "block", _natural("block", self.block, 1))
        object.__setattr__(self, "summary", _natural("summary", self.summary))
        if self.summary > self.block:
            raise ValueError(f"summary: expected at most block={self.block}, got {self.summary}")

    def _at(self, i, j):
        return (i // self.block == j // self.block) | (j % self.block >= self.block - self.summary)

    def _tiles(self, i0, i1, j0, j1):
        b, c = self.block, self.summary
        overlap = (i0 // b <= j1 // b) & (j0 // b <= i1 // b)
        # a summary column in [j0, j1]: it ends past its block's first b - c columns
        summary = (j1 % b >= b - c) | ((j1 // b > j0 // b) & (c > 0))
        same = (i0 // b == i1 // b) & (j0 // b == j1 // b) & (i0 // b == j0 // b)
        every = (j0 // b == j1 // b) & (j0 % b >= b - c)
        return overlap | (summary & (i0 == i0)), same | (every & (i0 == i0)) | (c == b)


@_term
class Random(Mask):
    """Each block of queries sees `per_row` blocks of keys, drawn without replacement over the
    whole sequence (BigBird, Zaheer et al. 2020, arXiv:2007.14062).

    The draw ranks key blocks by an integer hash of (seed, query block, key block): the same in
    every process and NumPy version. It depends on the lengths: `sized(T, S)` binds them (array,
    blocks, density, draw and every mechanism do so); `at` on an unbound one raises ValueError.
    """

    block: int
    per_row: int
    seed: int
    size: tuple[int, int] | None = None

    def __post_init__(self):
        object.__setattr__(self, "block", _natural("block", self.block, 1))
        object.__setattr__(self, "per_row", _natural("per_row", self.per_row))
        object.__setattr__(self, "seed", _natural("seed", self.seed))
        if self.size is not None:
            T, S = self.size
            object.__setattr__(self, "size", (_natural("size", T), _natural("size", S)))

    def sized(self, T, S):
        return Random(self.block, self.per_row, self.seed, (T, S)) if self.size is None else self

    def layout(self) -> Bool[np.ndarray, "rows columns"]:
        """Which block of keys each block of queries sees."""
        if self.size is None:
            raise ValueError(
                "Random: which blocks are drawn depends on the lengths; "
                "call mask.sized(T, S) before at(i, j), or give size=(T, S)"
            )
        return _draw_blocks(self)

    def _at(self, i, j):
        return _look_up(self.layout(), self.block, i, j)

    def _tiles(self, i0, i1, j0, j1):
        self.layout()  # refuses one without a size
        return _layout_tiles(_drawn_sums(self), self.block, i0, i1, j0, j1)


@functools.lru_cache(maxsize=32)
def _drawn_sums(term: Random):
    return _sums(_draw_blocks(term))


@functools.lru_cache(maxsize=32)
def _draw_blocks(term: Random) -> Bool[np.ndarray, "rows columns"]:
    rows, columns = (-(-n // term.block) for n in term.size)
    if term.per_row >= columns:
        return np.ones((rows, columns), bool)
    drawn = _hash(term.seed, np.arange(rows)[:, None], np.arange(columns)[None, :])
    least = np.argpartition(drawn, term.per_row, axis=1)[:, : term.per_row]
    layout = np.zeros((rows, columns), bool)
    np.put_along_axis(layout, least, True, axis=1)
    return layout


@_term
class Blocks(Mask):
    """layout[i // size][j // size]; outside the layout nothing is seen."""

    layout: tuple[tuple[bool, ...], ...]
    size: int

    def __post_init__(self):
        layout = np.asarray(self.layout) if len(self.layout) else np.zeros((0, 0), bool)
        if layout.ndim != 2:
            raise ValueError(f"layout: expected two axes [rows, columns], got {layout.ndim}")
        if not np.isin(layout, (0, 1)).all():
            raise ValueError("layout: expected booleans")
        rows = tuple(tuple(map(bool, row)) for row in layout.tolist())
        object.__setattr__(self, "layout", rows)
        object.__setattr__(self, "size", _natural("size", self.size, 1))

    def _at(self, i, j):
        return _look_up(self._grid(), self.size, i, j)

    def _tiles(self, i0, i1, j0, j1):
        return _layout_tiles(_sums(self._grid()), self.size, i0, i1, j0, j1)

    def _grid(self):
        return np.asarray(self.layout, bool).reshape(len(self.layout), -1 if self.layout else 0)


@_term
class Axial(Mask):
    """The same row or the same column of a height x width raster (Ho et al. 2019,
    arXiv:1912.12180); positions past the raster see nothing."""

    height: int
    width: int

    def __post_init__(self):
        object.__setattr__(self, "height", _natural("height", self.height, 1))
        object.__setattr__(self, "width", _natural("width", self.width, 1))

    def _at(self, i, j):
        w, size = self.width, self.height * self.width
        inside = (i >= 0) & (i < size) & (j >= 0) & (j < size)
        return inside & ((i // w == j // w) | ((i - j) % w == 0))

    def _tiles(self, i0, i1, j0, j1):
        w, size = self.width, self.height * self.width
        inside = (i1 < size) & (j1 < size)
        row = (i0 // w <= j1 // w) & (j0 // w <= i1 // w)
        same = (i0 // w == i1 // w) & (j0 // w == j1 // w) & (i0 // w == j0 // w)
        some = row | _has_multiple(i0 - j1, i1 - j0, w)
        return some & (i0 < size) & (j0 < size), (same | (w == 1)) & inside


def _has_multiple(lo, hi, n):
    """Whether [lo, hi] holds a multiple of n."""
    return hi // n * n >= lo


def _look_up(layout, size, i, j):
    """layout[i // size, j // size]; a rim of False stands for everything outside."""
    xp = np if isinstance(i, np.ndarray) and isinstance(j, np.ndarray) else jnp
    layout = xp.asarray(np.pad(layout, 1))
    row = xp.clip(i // size + 1, 0, layout.shape[0] - 1)
    column = xp.clip(j // size + 1, 0, layout.shape[1] - 1)
    return layout[row, column]


def _sums(layout):
    """The integral image of a layout: how many blocks lie above and left of each corner."""
    total = np.cumsum(np.cumsum(layout, 0, dtype=np.int32), 1, dtype=np.int32)
    return np.pad(total, ((1, 0), (1, 0)))


def _layout_tiles(total, size, i0, i1, j0, j1):
    """Blocks of a layout under a rectangle, counted by its integral image."""
    rows, cols = total.shape[0] - 1, total.shape[1] - 1
    a, b = np.minimum(i0 // size, rows), np.minimum(i1 // size + 1, rows)
    c, d = np.minimum(j0 // size, cols), np.minimum(j1 // size + 1, cols)
    count = total[b, d] - total[a, d] - total[b, c] + total[a, c]
    area = (i1 // size - i0 // size + 1) * (j1 // size - j0 // size + 1)
    return count > 0, count == area


def _hash(seed, a, b):
    """splitmix64 (Steele et al. 2014) of three integers: uniform, and the same everywhere."""
    mix = np.uint64
    with np.errstate(over="ignore"):
        x = mix(seed) * mix(0x9E3779B97F4A7C15)
        for part in (a, b):
            x = (x ^ np.asarray(part).astype(mix)) + mix(0x9E3779B97F4A7C15)
            x = (x ^ (x >> mix(30))) * mix(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> mix(27))) * mix(0x94D049BB133111EB)
            x = x ^ (x >> mix(31))
    return x
