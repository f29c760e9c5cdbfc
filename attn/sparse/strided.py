"""The Sparse Transformer's strided pattern (Child et al. 2019, arXiv:1904.10509): O(T sqrt T)."""

import dataclasses

from jaxtyping import Array, Float

from attn._settings import check_choice, check_count
from attn.biases import Bias
from attn.masks import FULL, Mask, Strided, Window
from attn.sparse._patterned import HEADS, Patterned
from attn.sparse._raster import root_up
from attn.sparse._reorder import Part, by_residue


def strided_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    stride: int | None = None,
    heads: str = "merged",
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over keys at most `stride` away or a multiple of it away.

    The strided pattern of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509), whose two
    kinds of heads are "merged", each seeing both sets of keys, or "alternating", even heads seeing
    the near keys and odd ones every stride-th; under `Causal` it is the paper's. (In the authors'
    code a near key is less than `stride` away, which matters to "alternating" alone.) `stride` is
    sqrt(S), rounded up, unless given: O(T sqrt(T)) time, since tokens are sorted by their residue.
    Takes any mask and bias. Raises ValueError for a stride below 1 and other `heads`.
    """
    return StridedPattern(stride=stride, heads=heads)(q, k, v, mask=mask, bias=bias)


strided_attention.heads_alike = lambda heads="merged", **_: heads == "merged"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StridedPattern(Patterned):
    """Softmax over neighbours and every stride-th token (Sparse Transformer, Child et al. 2019)."""

    stride: int | None = None
    heads: str = "merged"

    def __post_init__(self):
        super().__post_init__()
        check_choice("heads", self.heads, HEADS)
        if self.stride is not None:
            check_count("stride", self.stride)

    def _stride(self, S: int) -> int:
        return self.stride or root_up(S)

    def of_length(self, max_length):
        return dataclasses.replace(self, stride=self._stride(max_length))

    def patterns(self, T, S):
        n = self._stride(S)
        near, far = Window(n, n), Strided(n)
        return (near | far,) if self.heads == "merged" else (near, far)

    def pieces(self, T, S):
        n = self._stride(S)
        near, far = Window(n, n), Strided(n)
        if self.heads == "merged":
            return ((Part(near), by_residue(far & ~near, n, T, S)),)
        return (Part(near),), (by_residue(far, n, T, S),)

    @classmethod
    def examples(cls):
        return cls(stride=4, block=8), cls(), cls(stride=5, heads="alternating")
