"""Sliding-window attention (Beltagy et al. 2020, arXiv:2004.05150): O(T w) time and O(T) memory."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._dropout import as_dropout
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._prompt import bias_of, check_prompt
from attn._settings import check_count, check_room_for
from attn.biases import Bias
from attn.masks import FULL, Causal, Mask, Strided, Window
from attn.sparse._parts import attend_parts
from attn.sparse._patterned import Patterned
from attn.sparse._reorder import Part, by_residue


@auto_inside
def window_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    left: int,
    right: int,
    rate: int = 1,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(scale q k^T + bias) v over keys i - left <= j <= i + right that `mask` shows; in a
    dilated window, over as many keys, `rate` tokens apart.

    Blocks outside are never visited; `block` None is chosen for the least work. On a GPU cuDNN
    runs causal windows of 16-bit numbers, unless a `block` is given. O(T (left + right)) time, O(T)
    memory. Raises ValueError for a negative left or right and a rate below 1.
    """
    record = SlidingWindow(left=left, right=right, rate=rate, block=block)
    mask, bias = check_qkv(q, k, v, mask, bias)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    parts = record.running(q.shape[-3], k.shape[-3])
    return attend_parts(parts, q, k, v, mask, bias, scale=scale, dropout=dropout, block=block)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindow(Patterned):
    """Exact softmax over a sliding window (Beltagy et al. 2020): `left` keys before, `right` after,
    `rate` tokens apart."""

    left: int = 64
    right: int = 64
    rate: int = 1

    def __post_init__(self):
        super().__post_init__()
        for name, least in {"left": 0, "right": 0, "rate": 1}.items():
            check_count(name, getattr(self, name), least=least)
        self.patterns(0, 0)  # refuses a rate at which it is too wide

    def patterns(self, T, S):
        window = Window(self.left * self.rate, self.right * self.rate)
        return (window if self.rate == 1 else window & Strided(self.rate),)

    def pieces(self, T, S):
        (window,) = self.patterns(T, S)
        return ((Part(window) if self.rate == 1 else by_residue(window, self.rate, T, S),),)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        # not capped by max_length: a shorter ring would forget keys that are still in the window
        size = self.left * self.rate + 1
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, size, dtype)

    def prefill(self, q, k, v, *, max_length, bias=None):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), bias=bias_of(bias, q))
        return _cache.fill(k, v, self.left * self.rate + 1), out

    def step(self, state, q, k, v, *, bias=None):
        check_state(state, _cache.Cache, q)
        _cache.check_size(state, self.left * self.rate + 1)
        check_qkv(q, k, v, FULL)
        seen = (state.length - _cache.held(state.length, state.k.shape[-2])) % self.rate == 0
        row = _cache.bias_row(bias, state, q)
        state, out = _cache.step(state, q, k, v, bias=row, seen=seen)
        return state, out.astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return (
            cls(left=3, right=2, block=8),
            cls(left=2, right=1, rate=3, block=8),
            cls(left=40, right=0, block=8),
        )
