"""HGRN2 (Qin et al. 2024, arXiv:2404.07904): a gated RNN that writes what it forgets. O(T)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._axes import aligned
from attn._settings import is_number
from attn.linearized._depth import OfLayer
from attn.linearized._terms import Terms
from attn.masks import FULL, Mask
from attn.norms import HeadNorm


def hgrn2_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    lower_bound: float = 0.0,
    layer: int = 0,
    lower_bounds: Float[Array, "K layers H"] | None = None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """o_t = S_t^T silu(q_t) / sqrt(H), with S_t = diag(f_t) S_{t-1} + (1 - f_t) v_t^T.

    HGRN2 (Qin et al. 2024, arXiv:2404.07904): `k` holds the logits of the forget gate,
    f = b + (1 - b) sigmoid(k); what it forgets, 1 - f, is the key. The lower bound b is the number
    `lower_bound` or, for each channel, that of layer `layer` by the learned `lower_bounds`: the sum
    over layers 1 to `layer` of softmax(lower_bounds) over all layers.

    Without `Causal` a key after its query decays over the tokens from the query to the key. O(T)
    time and memory. Raises NotImplementedError for masks other than Causal, Padding and Segments
    and for a bias, ValueError for a lower_bound outside [0, 1), or above 0 where bounds are
    learned, a layer out of range and lower_bounds of another shape, TypeError for lower_bounds with
    layer 0, whose bound is 0.
    """
    layers, bounds = 1, {}
    if lower_bounds is not None:
        check_floats(lower_bounds=lower_bounds)
        shape = list(lower_bounds.shape)
        if len(shape) != 3:
            raise ValueError(f"lower_bounds: expected [key heads, layers, width], got {shape}")
        layers, bounds = shape[1], {"lower_bounds": lower_bounds}
    form = HGRN2(lower_bound=lower_bound, layer=layer, layers=layers, chunk=chunk)
    return form(q, k, v, mask=mask, bias=bias, **bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGRN2(OfLayer):
    """A gated linear RNN whose key is what its gate forgets, 1 - f (HGRN2, Qin et al. 2024).

    `lower_bound` is that of f in all channels. A `layer` after the first of `layers` learns one for
    each channel instead, above those of earlier layers: the sum over layers 1 to `layer` of a
    softmax over all layers of one parameter that they share, initialised so that layer l of L keeps
    at least l / L. `for_layers` makes them.
    """

    published_norm: ClassVar = HeadNorm(together=True)
    lower_bound: float = 0.0
    output_norm: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not is_number(self.lower_bound) or not 0 <= self.lower_bound < 1:
            raise ValueError(f"lower_bound: expected 0 to 1, less than 1, got {self.lower_bound!r}")
        if self.lower_bound and self.layers > 1:
            raise ValueError(
                f"lower_bound: expected 0 with layers={self.layers}, which learn theirs, got "
                f"{self.lower_bound!r}"
            )

    @property
    def shared_by_layers(self):
        return ("lower_bounds",) if self.layer else ()

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # the first layer's bound is 0 whatever they are
        bounds = jnp.zeros((num_kv_heads, self.layers, head_dim), jnp.float32)
        return {"lower_bounds": bounds} if self.layer else {}

    def terms(self, q, k, lower_bounds=None) -> Terms:
        log_bound, log_rest = self._log_bound(k, lower_bounds)
        forgotten = jnp.exp(log_rest) * jax.nn.sigmoid(-k)  # 1 - f
        # each form where it is exact: f near 1 has a small logarithm, f near 0 a small f
        near_one = jnp.log1p(-jnp.minimum(forgotten, 0.5))
        near_zero = jnp.logaddexp(log_bound, log_rest + jax.nn.log_sigmoid(k))
        log_f = jnp.where(forgotten < 0.5, near_one, near_zero)
        return Terms(jax.nn.silu(q) * q.shape[-1] ** -0.5, forgotten, log_f)

    def _log_bound(self, k, lower_bounds):
        """The logarithms of the lower bound b and of 1 - b, for the channels of k."""
        if lower_bounds is None:
            with np.errstate(divide="ignore"):
                return np.log(self.lower_bound).item(), np.log1p(-self.lower_bound).item()
        log_share = jax.nn.log_softmax(lower_bounds, axis=-2)
        layers = np.arange(self.layers)[None, :, None]
        below = (0 < layers) & (layers <= self.layer)
        both = (jax.nn.logsumexp(log_share, axis=-2, where=where) for where in (below, ~below))
        return aligned(k, *both)[1:]

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(chunk=5, lower_bound=0.3), cls(chunk=8, layer=2, layers=4)
