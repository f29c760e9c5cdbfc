"""Local attention of images: the square of pixels around each (Parmar et al. 2018,
arXiv:1802.05751)."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from attn._places import Places
from attn._settings import check_count
from attn.biases import Bias
from attn.masks import FULL, Local2D, Mask
from attn.sparse._patterned import Patterned
from attn.sparse._raster import check_raster, raster
from attn.sparse._reorder import Around, Part

TILE = 8  # pixels a side: 64 tokens that lie together
# a score by tiles takes this many times as long as one in the tokens' own order: its pixel is
# looked up, and a block is one tile
DEARER = 2


def local_2d_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    height: int | None = None,
    width: int | None = None,
    reach: int = 3,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over pixels at most `reach` rows and columns away.

    A square around each pixel of a height x width raster, by default the least square that holds S
    pixels (local attention of the Image Transformer, Parmar et al. 2018, arXiv:1802.05751, but
    around each pixel, not around blocks of them). Tokens from height * width on see nothing and are
    not seen. O(T (reach + 8)^2) time: pixels are sorted into tiles of 8 x 8, where the band of
    rows that holds the squares would cost more. Takes any mask and bias. Raises ValueError for
    sides below 1, for one without the other and for a negative reach.
    """
    return Local2DPattern(height=height, width=width, reach=reach)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local2DPattern(Patterned):
    """Softmax over the square of pixels around each (Image Transformer, Parmar et al. 2018)."""

    height: int | None = None
    width: int | None = None
    reach: int = 3

    def __post_init__(self):
        super().__post_init__()
        check_raster(self.height, self.width)
        check_count("reach", self.reach, least=0)

    def of_length(self, max_length):
        height, width = raster(self.height, self.width, max_length)
        return dataclasses.replace(self, height=height, width=width)

    def patterns(self, T, S):
        return (Local2D(*raster(self.height, self.width, S), self.reach),)

    def pieces(self, T, S):
        (pattern,) = self.patterns(T, S)
        # the keys that a query's block meets: a band of rows, or the tiles around its own
        band = min(2 * self.reach * pattern.width + 128, S)
        around = ((2 * -(-self.reach // TILE) + 1) * TILE) ** 2
        if band <= DEARER * around:
            return super().pieces(T, S)
        by_tile = lambda length: _by_tile(length, pattern.width)
        (rows, at), (columns, of) = map(by_tile, (T, S))
        return ((Part(pattern, rows, columns, Around(at, of, self.reach)),),)

    @classmethod
    def examples(cls):
        return cls(height=4, width=5, reach=1, block=8), cls(reach=2)


def _by_tile(length: int, width: int) -> tuple[Places, tuple[Places, Places]]:
    """The tokens sorted by tile, and the row and column of each."""
    y, x = np.divmod(np.arange(length), width)
    order = np.lexsort((x, y, x // TILE, y // TILE))
    return Places.of(order), (Places.of(y[order]), Places.of(x[order]))
