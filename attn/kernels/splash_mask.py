"""Our static masks as splash's: imported by splash.py when it runs, because it imports Pallas."""

import dataclasses

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

from attn.kernels.band import Band, split
from attn.masks import FULL, Mask


def build(band: Band, T: int, S: int) -> splash_attention_mask.Mask:
    """The static part of a mask over padded lengths T and S; padded keys are hidden by segment
    ids."""
    if band.rest == FULL and split(band.others, T, S).always_sees():
        if band.left is None and band.right is None:
            return splash_attention_mask.FullMask((T, S))
        # computed inside the kernel: no blocks of it in memory
        return splash_attention_mask.LocalMask((T, S), (band.left, band.right), 0)
    return Static(band.others, (T, S))


@dataclasses.dataclass(frozen=True)
class Static(splash_attention_mask.Mask):
    """Any static mask, drawn block by block. It hashes and compares by value, so that splash's own
    cache finds it."""

    mask: Mask
    size: tuple[int, int]

    @property
    def shape(self):
        return self.size

    def __getitem__(self, slices):
        i, j = (np.arange(n)[piece] for n, piece in zip(self.size, slices, strict=True))
        return self.mask.at(i[:, None], j[None, :])
