"""RWKV-6 (Peng et al. 2024, arXiv:2404.05892): linear attention, a bonus for the present. O(T)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._core import isolate
from attn._tokens import to_heads
from attn.gates import ZEROS, Fading, Gate, LowRank, Named, Ramp, Uniform, minus_exp
from attn.linearized._depth import OfLayer, rwkv_norm
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask


def rwkv6_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N H"],
    bonus: Float[Array, "N H"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = (S_{t-1} + diag(bonus) k_t v_t^T)^T q_t, with S_t = diag(exp(log_decay_t)) S_{t-1} +
    k_t v_t^T: a token's own value is weighted by `bonus`, the past read before the token's decay.

    The WKV of RWKV-6, "Finch" (Peng et al. 2024, arXiv:2404.05892), unscaled as in the paper; q is
    its receptance. The paper's token shift, before the projections, is left to the layer. Without
    `Causal` a key after its query decays over the tokens between them. O(T) time and memory. Raises
    NotImplementedError for masks other than Causal, Padding and Segments and for a bias, ValueError
    for a log_decay of another shape.
    """
    return RWKV6(chunk=chunk)(q, k, v, mask=mask, bias=bias, log_decay=log_decay, bonus=bonus)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV6(OfLayer):
    """A decay for each channel and a bonus for the current token (RWKV-6, Peng et al. 2024); a
    layer shifts its tokens, by shares that depend on the token.

    Initialised as the authors' first of several layers; `for_layers` makes a record for each layer,
    which initialises decays, bonus, shares and the scale of the norm by its depth. The products
    that make q, k, v and the output start as in any layer here.
    """

    reads_before: ClassVar = True
    adds_own: ClassVar = True
    shift_rank: ClassVar = 32
    output_gate: str | None = "silu"
    output_norm: bool = True
    published_norm = property(rwkv_norm)
    token_shift: bool = True

    @property
    def shifts(self):
        whole, half = Fading(power=self.remaining), Fading(power=0.5 * self.remaining)
        values = Fading(power=self.remaining, less=0.3 * self.depth)
        shares = {"shares": whole, "q": half, "k": whole, "v": values, "log_decay": whole}
        gated = {} if self.output_gate is None else {"output_gate": half}
        return {**shares, **gated} if self.token_shift else {}

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        width = num_heads * head_dim
        zigzag = ((jnp.arange(width, dtype=jnp.float32) + 1) % 3 - 1) * 0.1
        falling = self.depth * jnp.linspace(1, 0, width, dtype=jnp.float32)
        return {"bonus": (falling + zigzag).reshape(num_heads, head_dim)}

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        decay = Gate(
            shape=(num_heads, head_dim),
            activation=minus_exp,
            project=LowRank(rank=64, between=Named("tanh"), down=ZEROS, up=Uniform(0.01)),
            bias=Ramp(low=-6.0, high=-1.0, bend=0.7 + 1.3 * self.depth),
        )
        return {"log_decay": decay}

    def terms(self, q, k, log_decay, bonus) -> Terms:
        return Terms(q, k, log_decay)

    def own(self, q, k, log_decay, bonus):
        q, over = isolate(jnp.multiply(*aligned(q, bonus)))  # 0 * inf would be k's gradient
        return (q * to_heads(k, q.shape[-2], -2)).sum(-1) + over

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
