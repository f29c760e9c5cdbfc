"""Luong's alignment weights, a tile at a time: three scores, near a predicted position or not."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn._axes import aligned
from attn._core import dots, masked_softmax
from attn.dense import _rows
from attn.masks import Mask, Padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Global(_rows.Form):
    """softmax_j(score(q_i, k_j)), with the learned arrays `a` of the score."""

    a: dict[str, Array]
    score: str = dataclasses.field(metadata={"static": True})

    def features(self, q, k):
        if self.score == "general":
            q = jnp.einsum("...tnh,nhg->...tng", q, self.a["score_projection"])
        elif self.score == "concat":
            q = jnp.einsum("...tnh,nha->...tna", q, self.a["query_projection"])
            k = jnp.einsum("...skh,kha->...ska", k, self.a["key_projection"])
        return q, k

    def _softmax(self, q, tile):
        k, concat = tile.columns, self.score == "concat"
        s = _rows.tanh_scores(q, k, self.a["score_vector"]) if concat else dots(q, k)
        return masked_softmax(s + tile.bias, tile.seen)

    def weigh(self, tile):
        return self._softmax(tile.rows, tile)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Predictive(Global):
    """The same over the keys at most `window` from p_i, times a Gaussian around it."""

    first: Float[Array, "*#B"]
    real: Float[Array, "*#B"]
    window: int = dataclasses.field(metadata={"static": True})

    def features(self, q, k):
        p = _position(q, self.first, self.real, **self.a)
        q, k = super().features(q, k)
        return (q, p), k

    def _distance(self, rows, j):
        p = jnp.swapaxes(rows[1], -3, -2)
        return jnp.subtract(*aligned(j.astype(p.dtype), p))  # [*B, N, b, c]

    def near(self, rows, j):
        return jnp.abs(self._distance(rows, j)) <= self.window

    def weigh(self, tile):
        # 0 where hidden: the gradient there is as large as the values, and 0 * inf is NaN
        share = _gaussian(self._distance(tile.rows, tile.j), self.window)
        return self._softmax(tile.rows[0], tile) * jnp.where(tile.seen, share, 0)


def _position(q, first, real, position_projection, position_vector, **_):
    """p_i = S sigmoid(a . tanh(W q_i)), counted from the first real key: [*B, T, N, 1]."""
    x = jnp.einsum("...tnh,nhp->...tnp", q, position_projection)
    lost = jnp.isnan(x)  # inf - inf, of large queries: tanh' of it would reach the projection
    hidden = jnp.tanh(jnp.where(lost, 0, x))
    p = jax.nn.sigmoid(jnp.einsum("...tnp,np->...tn", hidden, position_vector))
    p = jnp.where(lost.any(-1), jnp.nan, p)
    first, real, p = aligned(first[..., None, None], real[..., None, None], p)
    return (first + real * p)[..., None]


def _gaussian(distance, window):
    return jnp.exp(-jnp.square(distance) / (2 * (window / 2) ** 2))


def real_keys(mask: Mask, S: int) -> tuple[Int[Array, "*B"], Int[Array, "*B"]]:
    """The first of S keys that a Padding leaves, and how many it leaves."""
    (padding,), _ = mask.take(Padding)
    if padding is None or S == 0:
        return jnp.int32(0), jnp.int32(S)
    seen = padding.seen_keys(S)
    return seen.argmax(-1), seen.sum(-1)
