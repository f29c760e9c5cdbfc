"""HGRN2 (Qin et al. 2024, arXiv:2404.07904): a gated RNN that writes what it forgets. O(T)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._numbers import is_number
from attn.linearized._family import Linearized
from attn.linearized._recurrence import Terms
from attn.masks import FULL, Mask


def hgrn2_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    lower_bound: float = 0.0,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T silu(q_t) / sqrt(H), with S_t = diag(f_t) S_{t-1} + (1 - f_t) v_t^T.

    HGRN2 (Qin et al. 2024, arXiv:2404.07904): `k` holds the logits of the forget gate,
    f = lower_bound + (1 - lower_bound) sigmoid(k), and what is forgotten is what is written.
    Without `Causal` a key after its query decays over the tokens from the query to it. O(T) time
    and memory. Raises NotImplementedError on masks but Causal, Padding and Segments or on a bias,
    ValueError for a lower_bound outside [0, 1).
    """
    return HGRN2(lower_bound=lower_bound, chunk=chunk)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGRN2(Linearized):
    """A gated linear RNN whose key is what its gate forgets, 1 - f (HGRN2, Qin et al. 2024).

    `lower_bound` is a number; the authors learn one for each channel of each layer.
    """

    lower_bound: float = 0.0
    output_norm: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not is_number(self.lower_bound) or not 0 <= self.lower_bound < 1:
            raise ValueError(f"lower_bound: expected 0 to 1, less than 1, got {self.lower_bound!r}")

    @classmethod
    def for_layers(cls, layers: int, **settings) -> tuple["HGRN2", ...]:
        """One for each layer with the lower bound that the authors' learned ones start from: layer
        l of L forgets all but l / L at most."""
        return tuple(cls(lower_bound=layer / layers, **settings) for layer in range(layers))

    def terms(self, q, k) -> Terms:
        with np.errstate(divide="ignore"):
            low, rest = np.log(self.lower_bound).item(), np.log1p(-self.lower_bound).item()
        forgotten = (1 - float(self.lower_bound)) * jax.nn.sigmoid(-k)  # 1 - f
        # each form where it is exact: f near 1 has a small logarithm, f near 0 a small f
        near_one = jnp.log1p(-jnp.minimum(forgotten, 0.5))
        log_f = jnp.where(
            forgotten < 0.5, near_one, jnp.logaddexp(low, rest + jax.nn.log_sigmoid(k))
        )
        return Terms(jax.nn.silu(q) * q.shape[-1] ** -0.5, forgotten, log_f)

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(chunk=5, lower_bound=0.3)
