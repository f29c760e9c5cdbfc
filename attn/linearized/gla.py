"""GLA (Yang et al. 2023, arXiv:2312.06635): linear attention, a forget gate per channel. O(T)."""

import dataclasses

from jaxtyping import Array, Float

from attn.gates import Gate, LowRank, Named
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask


def gla_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N H"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t / sqrt(H), with S_t = diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T.

    Gated linear attention (Yang et al. 2023, arXiv:2312.06635); `log_decay` at most 0. The paper is
    causal; without `Causal` a key after its query decays over the tokens from the query to the key.
    O(T) time and memory. Raises NotImplementedError for masks other than Causal, Padding and
    Segments and for a bias, ValueError for a log_decay of another shape.
    """
    return GLA(chunk=chunk)(q, k, v, mask=mask, bias=bias, log_decay=log_decay)


# Xavier with a gain of 2^-2.5, as in the authors' code
SMALL = Named("initializers.variance_scaling", (2.0**-5, "fan_avg", "uniform"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GLA(Linearized):
    """Linear attention with a data-dependent decay for each channel (GLA, Yang et al. 2023).

    A layer's keys are as wide as its values, where the paper's are half as wide.
    """

    output_gate: str | None = "silu"
    output_norm: bool = True

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        decay = Gate(
            shape=(num_heads, head_dim),
            activation=Named("log_sigmoid"),
            scale=1 / 16,
            project=LowRank(rank=16, down=SMALL, up=SMALL),
        )
        return {"log_decay": decay}

    def terms(self, q, k, log_decay) -> Terms:
        return Terms(q * q.shape[-1] ** -0.5, k, log_decay)

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
