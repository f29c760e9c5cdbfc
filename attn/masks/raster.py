"""Terms of an image, whose pixels are tokens row by row."""

import numpy as np

from attn.masks.language import LARGEST, Mask, keep, term
from attn.masks.strided import has_multiple


@term
class Local2D(Mask):
    """At most `reach` rows and columns away in a height x width raster (Parmar et al. 2018,
    arXiv:1802.05751, in squares); positions past the raster see nothing."""

    height: int
    width: int
    reach: int

    def __post_init__(self):
        keep(self, height=1, width=1, reach=0)

    def sees(self, i, j):
        w, size = self.width, min(self.height * self.width, LARGEST)
        inside = (i >= 0) & (i < size) & (j >= 0) & (j < size)
        near = (abs(i // w - j // w) <= self.reach) & (abs(i % w - j % w) <= self.reach)
        return inside & near

    def tiles(self, i0, i1, j0, j1):
        w, size = self.width, min(self.height * self.width, LARGEST)
        apart = np.maximum(i0 // w - j1 // w, j0 // w - i1 // w)
        some = (apart <= self.reach) & (i0 < size) & (j0 < size)
        return some, some & False


@term
class Axial(Mask):
    """The same row or the same column of a height x width raster (Ho et al. 2019,
    arXiv:1912.12180); positions past the raster see nothing."""

    height: int
    width: int

    def __post_init__(self):
        keep(self, height=1, width=1)

    def sees(self, i, j):
        w, size = self.width, min(self.height * self.width, LARGEST)
        inside = (i >= 0) & (i < size) & (j >= 0) & (j < size)
        return inside & ((i // w == j // w) | ((i - j) % w == 0))

    def tiles(self, i0, i1, j0, j1):
        w, size = self.width, min(self.height * self.width, LARGEST)
        inside = (i1 < size) & (j1 < size)
        row = (i0 // w <= j1 // w) & (j0 // w <= i1 // w)
        same = (i0 // w == i1 // w) & (j0 // w == j1 // w) & (i0 // w == j0 // w)
        some = row | has_multiple(i0 - j1, i1 - j0, w)
        return some & (i0 < size) & (j0 < size), (same | (w == 1)) & inside
