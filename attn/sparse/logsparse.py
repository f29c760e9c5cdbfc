"""LogSparse attention (Li et al. 2019, arXiv:1907.00235): distances that are powers of two."""

import dataclasses

from jaxtyping import Array, Float

from attn._settings import check_count
from attn.biases import Bias
from attn.masks import FULL, LogDistance, Mask, Window
from attn.sparse._patterned import Patterned


def logsparse_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    window: int = 1,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over keys less than `window` away, or a power of two away.

    LogSparse (Li et al. 2019, arXiv:1907.00235), with its local attention as a `window`; under
    `Causal` it is the paper's. (Published code, in flow-forecast, counts the powers from the far
    end of the window, not from the query, and lets the first queries see all keys before them.)
    Each query sees about log2(T) keys, whose blocks are visited whole: O(T b log T) time for blocks
    of b. O(T) memory. Takes any mask and bias. Raises ValueError for a window below 1.
    """
    return LogSparse(window=window)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogSparse(Patterned):
    """Softmax over neighbours and tokens a power of two away (LogSparse, Li et al. 2019)."""

    window: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_count("window", self.window)

    def patterns(self, T, S):
        return (LogDistance() | Window(self.window - 1, self.window - 1),)

    @classmethod
    def examples(cls):
        return cls(block=8), cls(window=3)
