"""Axial attention (Ho et al. 2019, arXiv:1912.12180): the row and the column of a raster."""

import dataclasses

from jaxtyping import Array, Float

from attn.biases import Bias
from attn.masks import FULL, Axial, Fixed, Mask
from attn.sparse._patterned import Patterned
from attn.sparse._raster import check_raster, raster
from attn.sparse._reorder import Part, by_residue


def axial_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    height: int | None = None,
    width: int | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over the row and the column of a height x width raster.

    By default the raster is the least square that holds S pixels. One normaliser for both axes (Ho
    et al. 2019, arXiv:1912.12180, attend to one axis a layer). Tokens from height * width on see
    nothing and are not seen. O(T (height + width)) time: columns are sorted to be contiguous. Takes
    any mask and bias. Raises ValueError for sides below 1, and for one without the other.
    """
    return AxialPattern(height=height, width=width)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialPattern(Patterned):
    """Softmax over the same row and the same column of an image (Ho et al. 2019)."""

    height: int | None = None
    width: int | None = None

    def __post_init__(self):
        super().__post_init__()
        check_raster(self.height, self.width)

    def of_length(self, max_length):
        height, width = raster(self.height, self.width, max_length)
        return dataclasses.replace(self, height=height, width=width)

    def patterns(self, T, S):
        return (Axial(*raster(self.height, self.width, S)),)

    def pieces(self, T, S):
        (whole,) = self.patterns(T, S)
        row = Fixed(whole.width, 0)
        return ((Part(whole & row), by_residue(whole & ~row, whole.width, T, S)),)

    @classmethod
    def examples(cls):
        return cls(height=4, width=5, block=8), cls(height=7, width=3)
