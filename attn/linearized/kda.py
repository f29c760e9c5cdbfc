"""KDA (Kimi Team 2025, arXiv:2510.26692): the delta rule, a forget gate per channel. O(T)."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Float

from attn._tokens import to_heads
from attn.gates import Gate, LowRank, Named, StepDecay, time_step, write_strength
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import unit
from attn.masks import FULL, Causal, Mask


def kda_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N H"],
    beta: Float[Array, "*B S N"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t / sqrt(H), with S' = diag(exp(log_decay_t)) S_{t-1} and
    S_t = S' + beta_t k_t (v_t - S'^T k_t)^T; q and k are normalised to length 1.

    Kimi delta attention (Kimi Team 2025, arXiv:2510.26692): the gated delta rule with a decay for
    each channel, `log_decay` at most 0; `beta` in [0, 1]. O(T) time and memory. Raises
    NotImplementedError without `Causal`, for masks other than Causal, Padding and Segments and for
    a bias, ValueError for a gate of another shape.
    """
    return KDA(chunk=chunk)(q, k, v, mask=mask, bias=bias, log_decay=log_decay, beta=beta)


SMALL = Named("initializers.normal", (0.02,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class KDA(Linearized):
    """The delta rule with a data-dependent decay for each channel (Kimi Linear, 2025)."""

    requires: ClassVar = (Causal,)
    short_conv: int = 4
    output_gate: str | None = "sigmoid"
    output_norm: bool = True
    negative_eigenvalues: bool = False  # beta up to 2 (Grazzi et al. 2024, arXiv:2411.12537)

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        project = LowRank(rank=head_dim, down=SMALL, up=SMALL)
        return {
            "log_decay": StepDecay(step=time_step((num_heads, head_dim), project)),
            "beta": write_strength(num_heads, negative_eigenvalues=self.negative_eigenvalues),
        }

    def gating(self, *, num_heads, head_dim):
        # of a low rank and with a bias, as in the authors' layer in fla
        activation, project = Named(self.output_gate), LowRank(rank=head_dim)
        return Gate(shape=(num_heads * head_dim,), activation=activation, project=project)

    def terms(self, q, k, log_decay, beta) -> Terms:
        k = to_heads(unit(k)[0], q.shape[-2], -2)
        q = unit(q)[0] * q.shape[-1] ** -0.5
        return Terms(q, beta[..., None] * k, log_decay, erase=k)

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
