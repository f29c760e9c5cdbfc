"""Terms that are layouts of blocks: given, drawn at random, or another mask's."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Bool

from attn._axes import namespace
from attn.masks.fields import keep, natural
from attn.masks.language import Mask, term


@term
class Blocks(Mask):
    """layout[i // size][j // size]; outside the layout nothing is seen."""

    layout: tuple[tuple[bool, ...], ...]
    size: int

    def __post_init__(self):
        try:
            layout = np.asarray(self.layout) if len(self.layout) else np.zeros((0, 0), bool)
        except (TypeError, ValueError):  # not rows, or of different lengths
            what = "rows of booleans, all as long"
            raise TypeError(f"layout: expected {what}, got {self.layout!r}") from None
        if layout.ndim != 2:
            raise ValueError(f"layout: expected two axes [rows, columns], got {layout.ndim}")
        if others := layout[~np.isin(layout, (0, 1))].tolist():
            raise ValueError(f"layout: expected booleans, got {others[0]!r}")
        rows = tuple(tuple(map(bool, row)) for row in layout.tolist())
        object.__setattr__(self, "layout", rows)
        keep(self, size=1)

    def sees(self, i, j):
        return _look_up(self._grid, self.size, i, j)

    def tiles(self, i0, i1, j0, j1):
        return _layout_tiles(_sums(self._grid), self.size, i0, i1, j0, j1)

    @functools.cached_property  # `pairs` asks for it at every visited block
    def _grid(self):
        return np.asarray(self.layout, bool).reshape(len(self.layout), -1 if self.layout else 0)


@term
class Coarse(Mask):
    """`mask` over blocks of `size` queries and keys: (i, j) is (i // size, j // size) of it."""

    mask: Mask = dataclasses.field(metadata={"child": True})
    size: int

    def __post_init__(self):
        if not isinstance(self.mask, Mask) or not self.mask.static:
            raise TypeError(f"mask: expected a static mask (no arrays) of blocks, got {self.mask}")
        keep(self, size=1)

    def sized(self, T, S):
        return Coarse(self.mask.sized(-(-T // self.size), -(-S // self.size)), self.size)

    def sees(self, i, j):
        return self.mask.sees(i // self.size, j // self.size)

    def tiles(self, *bounds):
        return self.mask.tiles(*(x // self.size for x in bounds))


@term
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
        keep(self, block=1, per_row=0, seed=0)
        if self.size is not None:
            if not isinstance(self.size, tuple | list) or len(self.size) != 2:
                raise TypeError(f"size: expected the lengths (T, S), got {self.size!r}")
            object.__setattr__(self, "size", tuple(natural("size", n) for n in self.size))

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

    def sees(self, i, j):
        return _look_up(self.layout(), self.block, i, j)

    def tiles(self, i0, i1, j0, j1):
        self.layout()  # refuses one without a size
        return _layout_tiles(_drawn_sums(self), self.block, i0, i1, j0, j1)


@functools.lru_cache(maxsize=32)
def _drawn_sums(term: Random):
    return _sums(_draw_blocks(term))


@functools.lru_cache(maxsize=32)
def _draw_blocks(term: Random) -> Bool[np.ndarray, "rows columns"]:
    rows, columns = (-(-n // term.block) for n in term.size)
    layout = np.full((rows, columns), term.per_row >= columns)
    if term.per_row < columns:
        drawn = _hash(term.seed, np.arange(rows)[:, None], np.arange(columns)[None, :])
        least = np.argpartition(drawn, term.per_row, axis=1)[:, : term.per_row]
        np.put_along_axis(layout, least, True, axis=1)
    layout.flags.writeable = False  # it is cached: every caller gets the same array
    return layout


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


def _look_up(layout, size, i, j):
    """layout[i // size, j // size], False outside of the layout (by padding it)."""
    xp = namespace(i, j)
    layout = xp.asarray(np.pad(layout, 1))
    row = xp.clip(i // size + 1, 0, layout.shape[0] - 1)
    column = xp.clip(j // size + 1, 0, layout.shape[1] - 1)
    return layout[row, column]


def _sums(layout):
    """The integral image of a layout: how many blocks lie above and left of each corner."""
    total = np.cumsum(np.cumsum(layout, 0, dtype=np.int32), 1, dtype=np.int32)
    return np.pad(total, ((1, 0), (1, 0)))


def _layout_tiles(total, size, i0, i1, j0, j1):
    """`tiles` of a layout: its True blocks in a rectangle, counted by its integral image."""
    rows, cols = total.shape[0] - 1, total.shape[1] - 1
    a, b = np.minimum(i0 // size, rows), np.minimum(i1 // size + 1, rows)
    c, d = np.minimum(j0 // size, cols), np.minimum(j1 // size + 1, cols)
    count = total[b, d] - total[a, d] - total[b, c] + total[a, c]
    area = (i1 // size - i0 // size + 1) * (j1 // size - j0 // size + 1)
    return count > 0, count == area
