"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762): O(T S) time.

Two implementations with one result: `materialized` holds the T x S scores, `blockwise` holds
O(T + S) (see `attn/_blockwise.py`).
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._blockwise import blockwise
from attn._core import (
    apply_weights,
    check_block,
    check_qkv,
    default_scale,
    dense_attention,
    dense_scores,
    dense_weights,
    masked_softmax,
    wide,
)
from attn.biases import Bias
from attn.masks import FULL, TERMS, Mask
from attn.mechanism import Mechanism

Implementation = Literal["materialized", "blockwise"]
EXPECTED = "expected 'materialized', 'blockwise' or None"


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
    block: int | None = None,
) -> Float[Array, "*B T N D"] | tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(scale q k^T + bias) v over the keys that `mask` shows, per head.

    `scale` is 1/sqrt(H) by default; `logit_cap` c replaces scores s by c tanh(s / c) before the
    bias. A query that sees nothing gets 0. With `return_lse` also the log-sum-exp of each row's
    scores (float32, -inf where it sees nothing). `implementation` is chosen by size if None, and
    so is the `block` of the blockwise one.
    Raises ValueError or TypeError for wrong shapes, dtypes or settings.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    scale = default_scale(scale, q.shape[-1])
    check_block(block)
    if logit_cap is not None and not 0 < logit_cap < 1e30:
        raise ValueError(f"logit_cap: expected a positive number or None, got {logit_cap}")
    if implementation is None:
        implementation = choose(q.shape[-3], k.shape[-3])
    if implementation == "blockwise":
        out, lse = blockwise(q, k, v, mask, bias, scale=scale, logit_cap=logit_cap, block=block)
    elif implementation == "materialized":
        out, lse = _materialized(q, k, v, mask, bias, scale, logit_cap)
    else:
        raise ValueError(f"implementation: {EXPECTED}, got {implementation!r}")
    return (out, lse) if return_lse else out


def choose(T: int, S: int) -> Implementation:
    """What runs by default: blocks pay from a few queries on; decoding has one."""
    return "materialized" if T < 8 or S < 8 else "blockwise"


def _materialized(q, k, v, mask, bias, scale, logit_cap):
    s, seen = dense_scores(q, k, mask, bias, scale, logit_cap)
    out = apply_weights(masked_softmax(s, seen), wide(v), seen).astype(q.dtype)
    hidden = jnp.where(seen, s, -jnp.inf)
    empty = ~seen.any(-1)
    # a row of -inf has no gradient but nan: rows that see nothing take their own branch
    lse = jax.nn.logsumexp(jnp.where(empty[..., None], 0, hidden), -1)
    return out, jnp.moveaxis(jnp.where(empty, -jnp.inf, lse), -2, -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Softmax(Mechanism):
    """Exact softmax over scaled dot products (Vaswani et al. 2017)."""

    honours: ClassVar = (*TERMS, Bias)
    implementation: Implementation | None = None
    logit_cap: float | None = None
    block: int | None = None

    def __post_init__(self):
        if self.implementation not in (None, "materialized", "blockwise"):
            raise ValueError(f"implementation: {EXPECTED}, got {self.implementation!r}")
        if self.logit_cap is not None and not 0 < self.logit_cap < 1e30:
            raise ValueError(f"logit_cap: expected a positive number, got {self.logit_cap}")
        check_block(self.block)

    @property
    def linear_memory(self):
        return self.implementation != "materialized"

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        return dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            logit_cap=self.logit_cap,
            implementation=self.implementation,
            block=self.block,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        return dense_attention(q, k, v, mask=mask, bias=bias, logit_cap=self.logit_cap)

    def weights(self, q, k, *, mask=FULL, bias=None):
        return dense_weights(q, k, mask=mask, bias=bias, logit_cap=self.logit_cap)

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def step(self, state, q, k, v):
        state, mask = _cache.append(state, k, v)
        out = dense_attention(q, state.k, state.v, mask=mask, logit_cap=self.logit_cap)
        # a full cache has forgotten keys that the definition still sees: say so, loudly
        out = jnp.where(state.length > state.k.shape[-3], jnp.nan, out)
        return state, out.astype(q.dtype)

    @classmethod
    def examples(cls):
        return (
            cls(implementation="materialized"),
            cls(implementation="blockwise"),
            cls(implementation="blockwise", block=8),
            cls(implementation="blockwise", block=16, logit_cap=5.0),
        )
