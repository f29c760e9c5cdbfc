"""The Sparse Transformer's fixed pattern (Child et al. 2019, arXiv:1904.10509): O(T sqrt T)."""

import dataclasses
import math

import numpy as np
from jaxtyping import Array, Float

from attn._core import check_count
from attn._places import Places
from attn.biases import Bias
from attn.masks import FULL, Fixed, Mask
from attn.sparse._reorder import Part
from attn.sparse.block_sparse import Patterned


def fixed_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    block_size: int | None = None,
    summary: int = 1,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over the query's own block and the last `summary` keys of
    every block.

    The fixed pattern of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509) with its two
    kinds of heads merged; under `Causal` it is the paper's. Blocks are of sqrt(S) tokens, rounded
    up, unless `block_size` is given: O(T sqrt(T) summary) time. Takes any mask and bias. Raises
    ValueError for a block below 1 or a summary longer than it.
    """
    record = FixedPattern(block_size=block_size, summary=summary)
    return record(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPattern(Patterned):
    """Softmax over the own block and each block's last tokens (Sparse Transformer, Child et al.
    2019)."""

    block_size: int | None = None
    summary: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_count("summary", self.summary, least=0)
        if self.block_size is not None:
            check_count("block_size", self.block_size)
            Fixed(self.block_size, self.summary)  # refuses a summary longer than a block

    def pattern(self, T, S):
        size = self.block_size or max(1, math.isqrt(max(S - 1, 0)) + 1)
        return Fixed(size, min(self.summary, size))

    def parts(self, T, S):
        whole = self.pattern(T, S)
        own = Fixed(whole.block, 0)
        last = np.flatnonzero(np.arange(S) % whole.block >= whole.block - whole.summary)
        if not len(last):
            return (Part(own),)
        return Part(own), Part(whole & ~own, keys=Places.of(last))

    @classmethod
    def examples(cls):
        return cls(block_size=5, summary=2, block=8), cls()
