"""Sliding-window attention (Beltagy et al. 2020, arXiv:2004.05150): O(T w) time and O(T) memory."""

import dataclasses

from jaxtyping import Array, Float

from attn import _cache
from attn._blockwise import blockwise
from attn._core import check_block, check_qkv
from attn._dropout import as_dropout
from attn.biases import Bias
from attn.masks import FULL, Causal, Mask, Window
from attn.sparse.block_sparse import Patterned


def window_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    left: int,
    right: int,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(scale q k^T + bias) v over keys i - left <= j <= i + right that `mask` shows.

    `Window(left, right)` and `mask` are joined: blocks outside are never visited. `block` is chosen
    by what is visited if None. Raises ValueError for a negative left or right.
    """
    check_block(block)
    mask, bias = check_qkv(q, k, v, Window(left, right) & mask, bias)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return blockwise(q, k, v, mask, bias, scale=scale, block=block, dropout=dropout)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindow(Patterned):
    """Exact softmax over a sliding window (Beltagy et al. 2020): `left` before, `right` after."""

    left: int = 64
    right: int = 64

    def __post_init__(self):
        super().__post_init__()
        Window(self.left, self.right)  # refuses what is not a window

    def pattern(self, T, S):
        return Window(self.left, self.right)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        # not capped by max_length: a shorter ring would forget keys that are still in the window
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, self.left + 1, dtype)

    def prefill(self, q, k, v, *, max_length):
        return _cache.fill(k, v, self.left + 1), self(q, k, v, mask=Causal())

    def step(self, state, q, k, v):
        check_qkv(q, k, v, FULL)
        state, out = _cache.step(state, q, k, v)
        return state, out.astype(q.dtype)

    @classmethod
    def examples(cls):
        return cls(left=3, right=2, block=8), cls(left=0, right=0), cls(left=40, right=0, block=8)
