"""Tiles of the score matrix: what the forms of `attn/_forms.py` visit, and their arithmetic.

B is cut into tiles of R batch rows and lengths into blocks of b and c. Batch rows and key heads
share one axis, and each key head's G = N / K query heads are stacked: q is [T/b, R K, G b, H], k is
[S/c, R K, c, H] and scores are [R K, G b, c].
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from attn._axes import conjunction
from attn._core import isolate, marked
from attn._dropout import Dropout, keep
from attn._wide import finite, inverse, wide

LOG2E = math.log2(math.e)


def huge(dtype) -> float:
    """The score that stands for NaN in the forward pass: a row with this maximum is NaN. XLA's max
    and exp2 on a CPU can lose a NaN (exp2(nan) is 1 in some fusions), but no number."""
    return float(jnp.finfo(dtype).max) / 2


def in_base_2(bias):
    """LOG2E * bias, where biases beyond 5.9e37 (in float32) are clipped: they would be infinite,
    and -inf hides a key."""
    most = huge(bias.dtype) / 2
    return jnp.where(jnp.isinf(bias), bias, jnp.clip(LOG2E * bias, -most, most))


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The sizes that are decided at trace time; `rows` batch rows make a tile."""

    B: int
    T: int
    S: int
    K: int
    G: int
    block_q: int
    block_k: int
    rows: int
    logit_cap: float | None
    scale: float

    @property
    def count(self) -> int:
        """How many tiles of batch rows there are."""
        return self.B // self.rows

    def take(self, x, n):
        """The R batch rows of tile n of each array of a pytree, or the one row that all share."""
        if self.count == 1:
            return x
        cut = lambda y: lax.dynamic_slice_in_dim(y, n * self.rows, self.rows)
        return jax.tree.map(lambda y: y if y.shape[0] == 1 < self.B else cut(y), x)

    def merge(self, x):
        """[B/R, R, ...] -> [B, ...]: what `lax.map` over tiles gives."""
        return x.reshape(self.B, *x.shape[2:])

    def to_blocks(self, x, block, fill=0.0) -> Shaped[Array, "blocks RK Gb W"]:
        """[R, L, heads, W] -> [L/block, R K, (heads / K) block, W], padded with `fill`."""
        R, L, heads, W = x.shape
        count = -(-L // block)
        if L % block:
            pad = ((0, 0), (0, count * block - L), (0, 0), (0, 0))
            x = jnp.pad(x, pad, constant_values=fill)
        x = x.reshape(R, count, block, self.K, heads // self.K, W)
        x = x.transpose(1, 0, 3, 4, 2, 5)  # [count, R, K, G, block, W]
        return x.reshape(count, R * self.K, heads // self.K * block, W)

    def from_blocks(self, x, L, heads) -> Float[Array, "R L heads W"]:
        """The inverse of `to_blocks`."""
        count, RK, length, W = x.shape
        block = length * self.K // heads
        x = x.reshape(count, RK // self.K, self.K, heads // self.K, block, W)
        x = x.transpose(1, 0, 4, 2, 3, 5)
        return x.reshape(RK // self.K, count * block, heads, W)[:, :L]

    def rows_to_blocks(self, x, fill=0.0) -> Float[Array, "blocks RK Gb"]:
        """[R, N, T] -> [T/block_q, R K, G block_q]: a number a row, padded with `fill`. Heads come
        first: XLA's CPU backend reads these numbers again for each score, then side by side."""
        count = -(-self.T // self.block_q)
        pad = ((0, 0), (0, 0), (0, count * self.block_q - self.T))
        x = jnp.pad(x, pad, constant_values=fill)
        x = x.reshape(len(x), self.K, self.G, count, self.block_q)
        return x.transpose(3, 0, 1, 2, 4).reshape(count, -1, self.G * self.block_q)

    def rows_from_blocks(self, x) -> Float[Array, "R N T"]:
        """The inverse of `rows_to_blocks`."""
        count, RK, _ = x.shape
        x = x.reshape(count, RK // self.K, self.K, self.G, self.block_q)
        x = x.transpose(1, 2, 3, 0, 4)
        return x.reshape(RK // self.K, self.K * self.G, count * self.block_q)[..., : self.T]

    def arrange(self, x, transposed) -> Array:
        """[R or 1, N or 1, b, c] -> [R K, G b, c], or [R K, c, G b]."""
        b, c = x.shape[-2:]
        x = jnp.broadcast_to(x, (self.rows, self.K * self.G, b, c))
        x = x.reshape(self.rows * self.K, self.G, b, c)
        if transposed:
            return x.transpose(0, 3, 1, 2).reshape(self.rows * self.K, c, self.G * b)
        return x.reshape(self.rows * self.K, self.G * b, c)

    def unarrange(self, x) -> Array:
        """[R K, c, G b] -> [R, N, b, c]."""
        c, b = x.shape[1], x.shape[2] // self.G
        x = x.reshape(self.rows, self.K, c, self.G, b).transpose(0, 1, 3, 4, 2)
        return x.reshape(self.rows, self.K * self.G, b, c)

    def scores(self, s, mask, bias, i, j, *, masked, transposed=False):
        """The capped, biased base-2 scores of the tile of queries i [b, 1] and keys j [1, c], and
        where they are seen (None if not `masked`)."""
        if self.logit_cap is not None:
            s = self.logit_cap * LOG2E * jnp.tanh(s / (self.logit_cap * LOG2E))
        if bias is not None:
            s = s + self.arrange(in_base_2(bias.tile(i, j).astype(s.dtype)), transposed)
        if not masked:
            return s, None
        seen = mask.at(i, j)  # [b, c] or [R or 1, b, c]
        seen = seen if self.S % self.block_k == 0 else conjunction(seen, j < self.S)
        seen = seen[None] if seen.ndim == 2 else seen
        return s, self.arrange(seen[:, None], transposed)

    def back(self, raw, dp, weigh, delta, mask, bias, i, j, *, masked, stays, rate):
        """The backward pass of a tile, transposed [R K, c, G b], from its raw scores: the weights
        that were used, the gradients of the scores with bias, and those of the raw ones. weigh(s,
        seen) are the weights p, dp their gradients; delta(p, dp) is the mean of these by the
        weights of each row, minus the gradient of its log-sum-exp. `stays` is where dropout keeps a
        weight."""
        s, seen = self.scores(raw, mask, bias, i, j, masked=masked, transposed=True)
        if bias is not None:  # an unused row whose bias is NaN: 0 * NaN
            s = jnp.where(s < jnp.inf, s, 0)
        used = p = weigh(s, seen)
        if stays is not None:
            dp, used = (jnp.where(stays, x / (1 - rate), 0) for x in (dp, p))
        ds = p * (dp - delta(p, dp)[..., None, :])
        ds = jnp.where(seen, ds, 0) if masked else ds
        if self.logit_cap is None:
            return used, ds, ds
        return used, ds, ds * (1 - jnp.square(jnp.tanh(raw / (self.logit_cap * LOG2E))))


def going_in(t: Tiling, q, k, v):
    """Inputs of the forward pass, of q's dtype: q scaled and in base 2, keys with poison where a
    key or value is not finite."""
    k, (v, poison) = k.astype(q.dtype), isolate(v.astype(q.dtype))
    return marked(q) * (t.scale * LOG2E), k + (poison + isolate(k)[1])[..., None], v


def coming_back(t: Tiling, q, k, v, total, do, d_lse):
    """Inputs of the backward pass: q scaled and in base 2, and zeros where anything is not
    finite."""
    q, k, v = wanted(t, q, k, v, total, do, d_lse)
    return q * (t.scale * LOG2E), k, v


def wanted(t: Tiling, q, k, v, total, do, d_lse):
    """q, k and v in q's dtype, 0 where anything is not finite, and q in rows that are not
    `sending`."""
    q = jnp.where(sending(t, q, k, total, do, d_lse), q, 0)
    return tuple(isolate(x.astype(q.dtype))[0] for x in (q, k, v))


def sending(t: Tiling, q, k, total, do, d_lse):
    """Whether a row sends a number back, [R, T, N, 1]. Not if its sum [R, N, T] is NaN: a score
    that overflowed would do so again, inf - inf against a top of inf. Nor if it is unused, of
    gradient 0, and large: a score that was -inf, added up in another order, may be NaN. (Other
    unused rows have second derivatives.)"""
    # heads first, as for `going_back`: XLA finds what rows are asked once for both
    asked = _asked(do.swapaxes(1, 2), d_lse).mT[..., None]
    return ~jnp.isnan(total).mT[..., None] & (asked | _small(t, q, k))


def _small(t: Tiling, q, k):
    """Whether no score of a row, nor a sum on the way to it, can overflow, [R, T, N, 1]."""
    largest = jnp.abs(finite(k)).max(initial=0).astype(wide(q).dtype)
    factor = q.shape[-1] * max(1.0, abs(t.scale)) * LOG2E
    top = jnp.abs(wide(q)).max(-1, keepdims=True, initial=0)
    return top * largest * factor < huge(largest.dtype) / 2


def _asked(do, d_lse):
    """Whether a row is used: do [R, N, T, D] and d_lse [R, N, T], or both in blocks."""
    return (do != 0).any(-1) | (d_lse != 0)


def going_back(top, total, do, d_lse):
    """The `top` by which the backward pass recomputes weights exp2(s - top), undivided; inf for
    rows that send nothing back. (top + log2(total), the log-sum-exp, rounds the total away where
    scores are as large as -1e9.)"""
    # rows that see nothing, and unused NaN rows: exp2(s - inf) = 0
    lost, asked = jnp.isnan(total), _asked(do, d_lse)
    top = jnp.where((total == 0) | (lost & ~asked), jnp.inf, jnp.where(lost, jnp.nan, top))
    # a NaN cotangent reaches what its row sees, nothing else
    return top + isolate(do)[1]


def going_back_in_blocks(t: Tiling, top, total, do, d_lse):
    """do, `top` and d_lse in blocks of queries, from do [R, T, N, D] and the others [R, N, T]."""
    dos = t.to_blocks(do, t.block_q)
    tops, totals = t.rows_to_blocks(top, jnp.inf), t.rows_to_blocks(total, 1.0)
    d_lses = t.rows_to_blocks(d_lse)
    return isolate(dos)[0], going_back(tops, totals, dos, d_lses), d_lses


def undivided(top):
    """The weights exp2(s - top), undivided, of scores [R K, c, G b], with the top [G b] of
    `going_back`."""

    def weigh(s, seen):
        s = s - top[..., None, :]
        # scores may round differently than in the forward pass, where none was above the top
        p = jnp.exp2(s - lax.stop_gradient(jnp.maximum(s, 0))) + _nan_of(top)
        return p if seen is None else jnp.where(seen, p, 0)

    return weigh


def divided(top):
    """The weights of scores of whole rows, divided by sums of their own: scores may round
    differently than in the forward pass, and gradients that cancel in a row must do so."""

    def weigh(s, seen):
        s = s if seen is None else jnp.where(seen, s, -jnp.inf)
        m = lax.stop_gradient(s.max(-2))
        m = jnp.where(top == jnp.inf, jnp.inf, jnp.where(m == -jnp.inf, 0, m))
        p = jnp.exp2(s - m[..., None, :])
        p = p * inverse(p.sum(-2))[..., None, :] + _nan_of(top)
        return p if seen is None else jnp.where(seen, p, 0)

    return weigh


def _nan_of(top):
    """A row whose top is NaN is NaN, also where XLA's exp2 would lose it."""
    return jnp.where(jnp.isnan(top), jnp.nan, 0).astype(top.dtype)[..., None, :]


def mean(p, dp):
    """do . out of each whole row, from the same numbers as what it is subtracted from: with `out`,
    most of the difference would be rounding where few keys are seen."""
    # the values of hidden keys may be as large as they like: 0 * inf
    return (p * jnp.where(p > 0, dp, 0)).sum(-2)


def whole_rows(s, seen):
    """The weights exp2(s - m) of rows that meet all their keys at once, their sum, and m, their
    largest score; sums are NaN where a seen score is, 0 where none is (`seen` None: all are)."""
    s = jnp.where(jnp.isnan(s), huge(s.dtype), s)
    if seen is not None:
        s = jnp.where(seen, s, -jnp.inf)
    # the derivative of max looks for equal scores, and XLA may have rounded them differently: 0 / 0
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    m = jnp.where(m == -jnp.inf, 0, m)
    p = jnp.exp2(s - m)
    total = jnp.where(m >= huge(s.dtype), jnp.nan, p.sum(-1, keepdims=True))
    return p, total, m


def words(t: Tiling, dropout: Dropout | None):
    """The words of a tile's queries and keys that decide its dropout, in blocks [., R K, ., 1]."""
    if dropout is None:
        return None
    rows = t.to_blocks(dropout.rows[..., None], t.block_q, fill=0)
    return Dropout(rows, t.to_blocks(dropout.columns[..., None], t.block_k, fill=0), dropout.rate)


def kept(drop: Dropout, a, b, transposed=False) -> Bool[Array, "RK Gb c"]:
    """Where the weights of block (a, b) are kept."""
    rows, columns = drop.rows[a], drop.columns[b]
    if transposed:
        return keep(rows.mT, columns, drop.rate)
    return keep(rows, columns.mT, drop.rate)


def transposed_product(a: Float[Array, "*B c H"], b: Float[Array, "*B c b"]):
    """b^T a, [*B, b, H], by way of (a^T b)^T: XLA's CPU backend is slow where it contracts another
    axis than the left factor's last, and without barriers would turn this into that."""
    return lax.optimization_barrier(lax.optimization_barrier(a.mT) @ b).mT
