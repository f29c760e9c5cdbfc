"""cosFormer (Qin et al. 2022, arXiv:2202.08791): relu features times a cosine of the distance."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn._axes import aligned
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._settings import check_count
from attn._wide import wide
from attn.linearized._family import Linearized
from attn.linearized._terms import State, Terms
from attn.linearized.feature_maps import cos_reweighted
from attn.masks import FULL, Causal, Mask


def cosformer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    length: int | None = None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """sum_j w_ij v_j / sum_j w_ij for w_ij = relu(q_i) . relu(k_j) cos(pi / 2 (i - j) / length).

    The cosine is a product of features (Ptolemy), so O(T H D) time, O(T) memory. `length` is the
    paper's M, by default how far positions reach: the longer of T (plus a positive offset) and S.
    Padding counts, so give `length` to make results independent of it. Under `Causal(offset)` query
    i stands at i + offset. Honours `Causal`, `Padding` and `Segments` joined by `&`, else
    NotImplementedError. Raises ValueError for a length below 1, and where a position reaches past
    it: there weights would turn negative.
    """
    return Cosformer(length=length, chunk=chunk)(q, k, v, mask=mask, bias=bias)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Placed:
    """The state after `position` tokens of at most `length`."""

    sums: State
    position: Int[Array, ""]
    length: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosformer(Linearized):
    """relu features re-weighted by a cosine of the distance (Qin et al. 2022).

    Without `length`, decoding takes max_length.
    """

    normalised: ClassVar = True
    # a row may meet few features: see `Linear.room`
    room: ClassVar[float] = 4.0
    length: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.length is not None:
            check_count("length", self.length)

    def terms(self, q, k):
        # the last channel is the angle of the token's position: see `_placed`
        phi = lambda x: cos_reweighted(x[..., :-1], x[..., -1])[0]
        return Terms(phi(q), phi(k))

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        placed = self._placed(q, k, v, mask)
        return super().__call__(*placed, mask=mask, bias=bias).astype(jnp.result_type(q))

    def weights(self, q, k, *, mask=FULL, bias=None):
        q, k, _ = self._placed(q, k, k, mask)
        return super().weights(q, k, mask=mask, bias=bias)

    def loop(self, q, k, v):
        return super().loop(*self._placed(q, k, v, Causal()))

    def _placed(self, q, k, v, mask):
        """q, k and v in float32 or wider, each token's angle as one more channel of q and k."""
        bound, _ = check_qkv(q, k, v, mask)
        T, S = q.shape[-3], k.shape[-3]
        causal = bound.take(Causal)[0][0]
        offset = 0 if causal is None else causal.offset
        reach = max(T + max(offset, 0), S, 1)
        length = self.length or reach
        if reach > length:
            raise ValueError(f"length: expected at least {reach}, got {length}")
        at = jnp.arange(T) + offset
        return _with_angle(q, at, length), _with_angle(k, jnp.arange(S), length), wide(v)

    def _sizes(self, N, K, H, D):
        return super()._sizes(N, K, H + 1, D)

    def init_state(self, batch, *, max_length, **sizes):
        sums = super().init_state(batch, max_length=max_length, **sizes)
        return Placed(sums, jnp.int32(0), jnp.float32(self.length or max_length))

    def step(self, state, q, k, v):
        self._checked_tokens(q, k, v, {})
        check_state(state, Placed)
        at = state.position + jnp.arange(q.shape[-3])
        qa, ka = (_with_angle(x, at, state.length) for x in (q, k))
        sums, out = super().step(state.sums, qa, ka, wide(v))
        # past `length` weights would turn negative: NaN says so loudly
        out, within = aligned(out, (at.astype(state.length.dtype) < state.length)[:, None, None])
        out = jnp.where(within, out, jnp.nan)
        return Placed(sums, state.position + len(at), state.length), out.astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return cls(chunk=8), cls(length=64, chunk=8)


def _with_angle(x, at, length):
    x = wide(x)
    angle = at.astype(x.dtype) * (math.pi / 2) / jnp.asarray(length, x.dtype)
    return jnp.concatenate([x, jnp.broadcast_to(angle[:, None, None], (*x.shape[:-1], 1))], -1)
