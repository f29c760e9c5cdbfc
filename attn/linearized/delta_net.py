"""DeltaNet (Yang et al. 2024, arXiv:2406.06484): linear attention by the delta rule. O(T)."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Float

from attn._tokens import to_heads
from attn.gates import write_strength
from attn.linearized._family import Linearized
from attn.linearized._terms import Terms
from attn.linearized.feature_maps import unit
from attn.masks import FULL, Causal, Mask


def delta_net_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    beta: Float[Array, "*B S N"],
    mask: Mask = FULL,
    bias=None,
    l2_norm: bool = True,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T q_t / sqrt(H), with S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T.

    The delta rule in parallel over chunks (Yang et al. 2024, arXiv:2406.06484): the value stored at
    k_t moves the fraction `beta` towards v_t. q and k are normalised to length 1 unless `l2_norm`
    is False; then beta |k|^2 above 2 makes the state grow without bound. O(T) time and memory.
    Raises NotImplementedError without `Causal`, for masks other than Causal, Padding and Segments
    and for a bias, ValueError for a beta of another shape.
    """
    return DeltaNet(l2_norm=l2_norm, chunk=chunk)(q, k, v, mask=mask, bias=bias, beta=beta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNet(Linearized):
    """Linear attention that corrects its stored values by the delta rule (Yang et al. 2024)."""

    requires: ClassVar = (Causal,)
    l2_norm: bool = True
    short_conv: int = 4
    output_gate: str | None = None
    output_norm: bool = True
    negative_eigenvalues: bool = False  # beta up to 2 (Grazzi et al. 2024, arXiv:2411.12537)

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"beta": write_strength(num_heads, negative_eigenvalues=self.negative_eigenvalues)}

    def terms(self, q, k, beta) -> Terms:
        q, k = (unit(q)[0], unit(k)[0]) if self.l2_norm else (q, k)
        k = to_heads(k, q.shape[-2], -2)
        return Terms(q * q.shape[-1] ** -0.5, beta[..., None] * k, erase=k)

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(l2_norm=False, chunk=4)
