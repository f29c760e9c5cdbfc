"""RWKV-7 (Peng et al. 2025, arXiv:2503.14456): generalised delta rule, a gate per channel. O(T)."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._core import isolate
from attn._tokens import to_heads
from attn.gates import ZEROS, Fading, Gate, LowRank, Named, Ramp, identity
from attn.linearized._depth import OfLayer, rwkv_norm
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import unit
from attn.masks import FULL, Causal, Mask


def rwkv7_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N H"],
    a: Float[Array, "*B S N H"],
    k_k: Float[Array, "N H"],
    k_a: Float[Array, "N H"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t, with kappa_t = k_t k_k / |k_t k_k|, k'_t = k_t (1 + (a_t - 1) k_a)
    and S_t = (diag(exp(log_decay_t)) - (a_t kappa_t) kappa_t^T) S_{t-1} + k'_t v_t^T.

    The WKV of RWKV-7, "Goose" (Peng et al. 2025, arXiv:2503.14456), unscaled as in the paper; q is
    its receptance, `a` in [0, 1] the in-context learning rate of each channel. The removal key
    `kappa` reads the state before its decay. The paper's token shift, before the projections, and
    its bonus, after the norm of the output, are left to the layer. O(T) time and memory. Raises
    NotImplementedError without `Causal`, for masks other than Causal, Padding and Segments and for
    a bias, ValueError for a gate of another shape.
    """
    arrays = {"log_decay": log_decay, "a": a, "k_k": k_k, "k_a": k_a}
    return RWKV7(chunk=chunk)(q, k, v, mask=mask, bias=bias, **arrays)


TENTH = Named("initializers.orthogonal", (0.1,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RWKV7(OfLayer):
    """The delta rule with a removal key and a rate for each channel (RWKV-7, Peng et al. 2025); a
    layer shifts its tokens, takes a share of the first layer's values and adds a bonus.

    Initialised as the first of several layers in the authors' later training code
    (BlinkDL/RWKV-LM); `for_layers` makes a record for each layer, which initialises decays, shares
    and the scale of the norm by its depth. The products that make q, k, v and the output start as
    in any layer here; there q, k and v are smaller and the output is 0. The first layer too has
    weights for a share of its own values, which change nothing there.
    """

    requires: ClassVar = (Causal,)
    squares: ClassVar = True  # learned k_k and k_a may be above 1
    bonus: float | None = -0.04
    output_gate: str | None = "sigmoid"
    output_norm: bool = True
    published_norm = property(rwkv_norm)
    token_shift: bool = True
    value_residual: bool = True

    @property
    def shifts(self):
        powers = {"q": 0.2, "k": 0.7, "v": 0.7, "log_decay": 0.9, "a": 0.9}
        powers |= {} if self.output_gate is None else {"output_gate": 0.2}
        starts = {name: Fading(power=power * self.remaining) for name, power in powers.items()}
        return starts if self.token_shift else {}

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        k_k = jnp.linspace(0.76, 0.66, num_heads * head_dim, dtype=jnp.float32)
        k_a = jnp.full((num_heads, head_dim), 1.02, jnp.float32)
        return {"k_k": k_k.reshape(num_heads, head_dim), "k_a": k_a}

    def gating(self, *, num_heads, head_dim):
        # its activation is between the two products
        width, between = num_heads * head_dim, Named(self.output_gate)
        rank = max(32, 32 * round(5 * math.sqrt(width) / 32))
        project = LowRank(rank=rank, between=between, down=ZEROS, up=TENTH)
        return Gate(shape=(width,), project=project, bias=None)

    def blending(self, *, num_kv_heads, head_dim):
        if not self.value_residual:
            return None
        shape, width = (num_kv_heads, head_dim), num_kv_heads * head_dim
        rank = max(32, 32 * round(1.7 * math.sqrt(width) / 32))
        return Gate(
            shape=shape,
            activation=Named("sigmoid"),
            project=LowRank(rank=rank, down=ZEROS, up=TENTH),
            bias=Ramp(low=0.93, high=0.53),
        )

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        shape, width = (num_heads, head_dim), num_heads * head_dim
        rank = max(32, 32 * round(2.5 * math.sqrt(width) / 32))
        low_rank = lambda between: LowRank(rank=rank, between=between, down=ZEROS, up=TENTH)
        return {
            "log_decay": Gate(
                shape=shape,
                activation=Named("sigmoid"),
                scale=-math.exp(-0.5),
                project=low_rank(Named("tanh")),
                bias=Ramp(low=-5.5, high=0.5, bend=1 + self.depth**0.3, zigzag=2.5),
            ),
            "a": Gate(
                shape=shape,
                activation=Named("sigmoid"),
                project=low_rank(identity),
                bias=Ramp(low=-0.39, high=0.01, zigzag=0.3),
            ),
        }

    def terms(self, q, k, log_decay, a, k_k, k_a) -> Terms:
        k = to_heads(k, q.shape[-2], -2)
        # what overflows is NaN in the written key alone, which the engine isolates
        removed, over = isolate(jnp.multiply(*aligned(k, k_k)))
        written, kappa = _written(k, a, k_a) + over[..., None], unit(removed)[0]
        return Terms(q, written, log_decay, erase=kappa, remove=a * kappa)

    def own(self, q, k, bonus, log_decay, a, k_k, k_a):
        q, bonus = aligned(q, bonus)
        return (q * bonus * _written(to_heads(k, q.shape[-2], -2), a, k_a)).sum(-1)

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)


def _written(k, a, k_a):
    """The key k' under which a value is written."""
    k, k_a = aligned(k, k_a)
    return k * (1 + (a - 1) * k_a)
