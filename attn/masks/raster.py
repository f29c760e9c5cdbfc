"""Terms for an image whose pixels are tokens, row by row."""

import numpy as np

from attn.masks.fields import LARGEST, keep
from attn.masks.language import Mask, term
from attn.masks.strided import has_multiple, same_block


@term
class Local2D(Mask):
    """Pixels at most `reach` rows and columns apart in a height x width raster (Parmar et al. 2018,
    arXiv:1802.05751, in squares); positions past the raster see nothing and are hidden."""

    height: int
    width: int
    reach: int

    def __post_init__(self):
        keep(self, height=1, width=1, reach=0)

    def sees(self, i, j):
        w, inside = self.width, _inside(self, i, j)
        near = (abs(i // w - j // w) <= self.reach) & (abs(i % w - j % w) <= self.reach)
        return inside & near

    def tiles(self, i0, i1, j0, j1):
        w, size = self.width, _pixels(self)
        apart = np.maximum(i0 // w - j1 // w, j0 // w - i1 // w)
        some = (apart <= self.reach) & (i0 < size) & (j0 < size)
        return some, some & False


@term
class Axial(Mask):
    """The same row or the same column of a height x width raster (Ho et al. 2019,
    arXiv:1912.12180); positions past the raster see nothing and are hidden."""

    height: int
    width: int

    def __post_init__(self):
        keep(self, height=1, width=1)

    def sees(self, i, j):
        w = self.width
        return _inside(self, i, j) & ((i // w == j // w) | ((i - j) % w == 0))

    def tiles(self, i0, i1, j0, j1):
        w, size = self.width, _pixels(self)
        some, every = same_block(i0, i1, j0, j1, w)
        some = some | has_multiple(i0 - j1, i1 - j0, w)
        inside = (i1 < size) & (j1 < size)
        return some & (i0 < size) & (j0 < size), (every | (w == 1)) & inside


def _pixels(raster: Local2D | Axial) -> int:
    return min(raster.height * raster.width, LARGEST)  # indices are 32 bits


def _inside(raster: Local2D | Axial, i, j):
    size = _pixels(raster)
    return (i >= 0) & (i < size) & (j >= 0) & (j < size)
