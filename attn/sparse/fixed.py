"""The Sparse Transformer's fixed pattern (Child et al. 2019, arXiv:1904.10509): O(T sqrt T)."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from attn._places import Places
from attn._settings import check_choice, check_count
from attn.biases import Bias
from attn.masks import FULL, Fixed, Mask, Summary
from attn.sparse._patterned import HEADS, Patterned
from attn.sparse._raster import root_up
from attn.sparse._reorder import Part


def fixed_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    block_size: int | None = None,
    summary: int = 1,
    heads: str = "merged",
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over the query's own block and the last `summary` keys of
    every block.

    The fixed pattern of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509), whose two
    kinds of heads are "merged", each seeing both sets of keys, or "alternating", even heads seeing
    their block and odd ones the last keys; under `Causal` it is the paper's. (All heads see the
    same last keys; the paper prefers, and its authors' code takes by `num_verts`, other runs of
    `summary` keys of a block in other heads.) Blocks have sqrt(S) tokens, rounded up, unless
    `block_size` is given: O(T sqrt(T) summary) time. Takes any mask and bias. Raises ValueError for
    a block below 1, a summary longer than it, and other `heads`.
    """
    record = FixedPattern(block_size=block_size, summary=summary, heads=heads)
    return record(q, k, v, mask=mask, bias=bias)


fixed_attention.heads_alike = lambda heads="merged", **_: heads == "merged"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPattern(Patterned):
    """Softmax over a query's own block and each block's last tokens (Sparse Transformer, Child et
    al. 2019)."""

    block_size: int | None = None
    summary: int = 1
    heads: str = "merged"

    def __post_init__(self):
        super().__post_init__()
        check_choice("heads", self.heads, HEADS)
        check_count("summary", self.summary, least=0)
        if self.block_size is not None:
            check_count("block_size", self.block_size)
            Fixed(self.block_size, self.summary)  # refuses a summary longer than a block

    def _whole(self, S: int) -> Fixed:
        size = self.block_size or root_up(S)
        return Fixed(size, min(self.summary, size))

    def of_length(self, max_length):
        whole = self._whole(max_length)
        return dataclasses.replace(self, block_size=whole.block, summary=whole.summary)

    def patterns(self, T, S):
        whole = self._whole(S)
        if self.heads == "merged":
            return (whole,)
        return Fixed(whole.block, 0), Summary(whole.block, whole.summary)

    def pieces(self, T, S):
        whole = self._whole(S)
        own, last = Fixed(whole.block, 0), Summary(whole.block, whole.summary)
        at = np.flatnonzero(np.arange(S) % whole.block >= whole.block - whole.summary)
        if self.heads == "alternating":
            return (Part(own),), (Part(last, keys=Places.of(at)) if len(at) else Part(~FULL),)
        if not len(at):
            return ((Part(own),),)
        return ((Part(own), Part(whole & ~own, keys=Places.of(at))),)

    @classmethod
    def examples(cls):
        return (
            cls(block_size=5, summary=2, block=8),
            cls(),
            cls(block_size=4, heads="alternating"),
        )
