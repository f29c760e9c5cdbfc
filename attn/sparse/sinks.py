"""Attention sinks (StreamingLLM, Xiao et al. 2023, arXiv:2309.17453): first tokens and a window."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._inputs import check_qkv, check_state
from attn._prompt import bias_of, check_prompt
from attn._settings import check_count, check_room_for
from attn.biases import Bias
from attn.masks import FULL, Causal, Mask, Prefix, Window
from attn.sparse._patterned import Patterned


def sinks_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    sinks: int = 4,
    window: int = 256,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over the first `sinks` keys and those less than `window`
    away.

    StreamingLLM's pattern (Xiao et al. 2023, arXiv:2309.17453); under `Causal` it is the paper's,
    except that positions are those in the sequence, not those in its cache. O(T (window + sinks))
    time, O(T) memory. Takes any mask and bias. Raises ValueError for a window below 1 and for
    negative `sinks`.
    """
    return Sinks(sinks=sinks, window=window)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinks(Patterned):
    """Softmax over the first tokens and a window (StreamingLLM, Xiao et al. 2023)."""

    sinks: int = 4
    window: int = 256

    def __post_init__(self):
        super().__post_init__()
        check_count("sinks", self.sinks, least=0)
        check_count("window", self.window)

    def patterns(self, T, S):
        return (Prefix(self.sinks) | Window(self.window - 1, self.window - 1),)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        size = self.sinks + self.window
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, size, dtype)

    def prefill(self, q, k, v, *, max_length, bias=None):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), bias=bias_of(bias, q))
        return _cache.fill(k, v, self.sinks + self.window, self.sinks), out

    def step(self, state, q, k, v, *, bias=None):
        check_state(state, _cache.Cache, q)
        _cache.check_size(state, self.sinks + self.window)
        check_qkv(q, k, v, FULL)
        row = _cache.bias_row(bias, state, q, self.sinks)
        state, out = _cache.step(state, q, k, v, bias=row, pinned=self.sinks)
        return state, out.astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return cls(sinks=2, window=4, block=8), cls(sinks=0, window=1)
