"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762): O(T S) time.

Two implementations with one result: `materialized` holds the T x S scores, `blockwise` holds
O(T + S) (see `attn/_blockwise.py`).
"""

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._blockwise import blockwise
from attn._core import (
    apply_weights,
    check_qkv,
    default_scale,
    masked_softmax,
    scores,
    seen_array,
    wide,
)
from attn.biases import Bias
from attn.masks import FULL, TERMS, Mask
from attn.mechanism import Mechanism

Implementation = Literal["materialized", "blockwise"]


def dot_product_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*B N T S"] | None = None,
    scale: float | Array | None = None,
    logit_cap: float | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "*B T N D"] | tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(scale q k^T + bias) v over the keys that `mask` shows, per head.

    `scale` is 1/sqrt(H) by default; `logit_cap` c replaces scores s by c tanh(s / c) before the
    bias. A query that sees nothing gets 0. With `return_lse` also the log-sum-exp of each row's
    scores (float32, -inf where it sees nothing). `implementation` is chosen by size if None.
    Raises ValueError or TypeError for wrong shapes, dtypes or settings.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    scale = default_scale(scale, q.shape[-1])
    if logit_cap is not None and not logit_cap > 0:
        raise ValueError(f"logit_cap: expected a positive number or None, got {logit_cap}")
    if implementation is None:
        implementation = choose(q.shape[-3], k.shape[-3])
    if implementation == "blockwise":
        out, lse = blockwise(q, k, v, mask, bias, scale=scale, logit_cap=logit_cap)
    elif implementation == "materialized":
        out, lse = _materialized(q, k, v, mask, bias, scale, logit_cap)
    else:
        raise ValueError(
            f"implementation: expected 'materialized' or 'blockwise', got {implementation!r}"
        )
    return (out, lse) if return_lse else out


def choose(T: int, S: int) -> Implementation:
    """What runs by default: whole scores where they are small enough to stay in cache."""
    return "materialized" if T * S <= 128 * 128 else "blockwise"


def _scores(q, k, mask, bias, scale, logit_cap):
    s = scores(wide(q) * scale, wide(k))
    if logit_cap is not None:
        s = logit_cap * jnp.tanh(s / logit_cap)
    if bias is not None:
        s = s + bias.array(*s.shape[-2:]).astype(s.dtype)
    return s, seen_array(mask, *s.shape[-2:])


def _materialized(q, k, v, mask, bias, scale, logit_cap):
    s, seen = _scores(q, k, mask, bias, scale, logit_cap)
    out = apply_weights(masked_softmax(s, seen), wide(v), seen).astype(q.dtype)
    top = jnp.max(jnp.where(seen, s, -jnp.inf), -1, keepdims=True, initial=-jnp.inf)
    top = jnp.where(top == -jnp.inf, 0, top)
    total = jnp.where(seen, jnp.exp(jnp.where(seen, s - top, 0)), 0).sum(-1)
    lse = jnp.where(total == 0, -jnp.inf, jnp.log(jnp.where(total == 0, 1, total)) + top[..., 0])
    return out, jnp.moveaxis(lse, -2, -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Softmax(Mechanism):
    """Exact softmax over scaled dot products (Vaswani et al. 2017)."""

    honours: ClassVar = (*TERMS, Bias)
    implementation: Implementation | None = None
    logit_cap: float | None = None

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        return dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            logit_cap=self.logit_cap,
            implementation=self.implementation,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        seen = seen_array(mask, q.shape[-3], k.shape[-3])
        return apply_weights(self.weights(q, k, mask=mask, bias=bias), wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        scale = default_scale(None, q.shape[-1])
        return masked_softmax(*_scores(q, k, mask, bias, scale, self.logit_cap))

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def step(self, state, q, k, v, *, bias=None):
        state, mask = _cache.append(state, k, v)
        return state, self(q, state.k, state.v, mask=mask, bias=bias)

    @classmethod
    def examples(cls):
        return (
            cls(implementation="materialized"),
            cls(implementation="blockwise"),
            cls(implementation="blockwise", logit_cap=5.0),
        )
