"""Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): a state space model as linear attention. O(T)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._tokens import to_heads
from attn.gates import time_step
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask
from attn.norms import HeadNorm


def mamba2_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    dt: Float[Array, "*B S N"],
    a_log: Float[Array, "N"],
    d: Float[Array, "N"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t + d v_t, with S_t = exp(-exp(a_log) dt_t) S_{t-1} + dt_t k_t v_t^T.

    State space duality (Dao & Gu 2024, arXiv:2405.21060), unscaled as in the paper: q is its C, k
    its B, v its x, and `dt`, at least 0, the step size that discretises decay and key, after its
    softplus. The paper is causal; without `Causal` a key after its query decays over the tokens
    from the query to the key. O(T) time and memory. Raises NotImplementedError for masks other than
    Causal, Padding and Segments and for a bias, ValueError for a dt of another shape.
    """
    return Mamba2(chunk=chunk)(q, k, v, mask=mask, bias=bias, dt=dt, a_log=a_log, d=d)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2(Linearized):
    """A selective state space model with one decay per head and a skip (Mamba-2, Dao & Gu 2024).

    In a layer each head has its own C, and each of `num_kv_heads` its own B, as wide as its x: the
    authors share one B and C of 128 channels among all heads, of 64 channels.
    """

    adds_own: ClassVar = True
    conv_bias: ClassVar = True
    gates_first: ClassVar = True
    published_norm: ClassVar = HeadNorm(together=True)
    short_conv: int = 4
    output_gate: str | None = "silu"
    output_norm: bool = True

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        a = jax.random.uniform(key, (num_heads,), jnp.float32, 1.0, 16.0)
        return {"a_log": jnp.log(a), "d": jnp.ones(num_heads, jnp.float32)}

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"dt": time_step((num_heads,))}

    def terms(self, q, k, dt, a_log, d) -> Terms:
        dt_k = dt[..., None] * to_heads(k, q.shape[-2], -2)
        log_decay = jnp.multiply(*aligned(-jnp.exp(a_log)[:, None], dt[..., None]))
        return Terms(q, dt_k, log_decay)

    def own(self, q, k, dt, a_log, d):
        return jnp.broadcast_to(d, q.shape[:-1])

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
