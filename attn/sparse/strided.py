"""The Sparse Transformer's strided pattern (Child et al. 2019, arXiv:1904.10509): O(T sqrt T)."""

import dataclasses
import math

from jaxtyping import Array, Float

from attn._core import check_count
from attn.biases import Bias
from attn.masks import FULL, Mask, Strided, Window
from attn.sparse._reorder import Part, by_residue
from attn.sparse.block_sparse import Patterned


def strided_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    stride: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over keys at most `stride` away or a multiple of it away.

    The strided pattern of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509) with its two
    kinds of heads merged; under `Causal` it is the paper's. `stride` is sqrt(S), rounded up, unless
    given: O(T sqrt(T)) time, for the tokens of one residue are neighbours once sorted by it. Takes
    any mask and bias. Raises ValueError for a stride below 1.
    """
    return StridedPattern(stride=stride)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StridedPattern(Patterned):
    """Softmax over neighbours and every stride-th token (Sparse Transformer, Child et al. 2019)."""

    stride: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.stride is not None:
            check_count("stride", self.stride)

    def _stride(self, S: int) -> int:
        return self.stride or max(1, math.isqrt(max(S - 1, 0)) + 1)

    def pattern(self, T, S):
        n = self._stride(S)
        return Window(n, n) | Strided(n)

    def parts(self, T, S):
        n = self._stride(S)
        near = Window(n, n)
        return Part(near), by_residue(Strided(n) & ~near, n, T, S)

    @classmethod
    def examples(cls):
        return cls(stride=4, block=8), cls()
