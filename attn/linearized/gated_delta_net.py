"""Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): the delta rule on a decaying state. O(T)."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Float

from attn._tokens import to_heads
from attn.gates import StepDecay, time_step, write_strength
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import unit
from attn.masks import FULL, Causal, Mask


def gated_delta_net_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N"],
    beta: Float[Array, "*B S N"],
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t / sqrt(H), with S' = exp(log_decay_t) S_{t-1} and
    S_t = S' + beta_t k_t (v_t - S'^T k_t)^T; q and k are normalised to length 1.

    The gated delta rule (Yang et al. 2024, arXiv:2412.06464): `log_decay`, at most 0, one per head,
    decays the whole state; `beta` in [0, 1] rewrites what is stored at k_t. O(T) time and memory.
    Raises NotImplementedError without `Causal`, for masks other than Causal, Padding and Segments
    and for a bias, ValueError for a gate of another shape.
    """
    gates = {"log_decay": log_decay, "beta": beta}
    return GatedDeltaNet(chunk=chunk)(q, k, v, mask=mask, bias=bias, **gates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(Linearized):
    """The delta rule on a state with a data-dependent decay for each head (Yang et al. 2024).

    A layer's values are as wide as its keys, where the authors' are twice as wide.
    """

    requires: ClassVar = (Causal,)
    short_conv: int = 4
    output_gate: str | None = "silu"
    output_norm: bool = True
    negative_eigenvalues: bool = False  # beta up to 2 (Grazzi et al. 2024, arXiv:2411.12537)

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {
            "log_decay": StepDecay(step=time_step((num_heads,)), rates=(0.0, 16.0)),
            "beta": write_strength(num_heads, negative_eigenvalues=self.negative_eigenvalues),
        }

    def terms(self, q, k, log_decay, beta) -> Terms:
        k = to_heads(unit(k)[0], q.shape[-2], -2)
        q = unit(q)[0] * q.shape[-1] ** -0.5
        return Terms(q, beta[..., None] * k, log_decay[..., None], erase=k)

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)
