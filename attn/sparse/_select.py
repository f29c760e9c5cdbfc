"""Shared by variants that select keys by content: queries by chunks, blocks gathered.

A selection is made in float32 without a gradient, ties to the earlier, whatever the dtype, so that
a reference in float64 selects the same keys. NaN and Inf are taken out of q, k and v first and put
back at the end into the rows that see them, as in `attn/_core.py`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from attn._axes import aligned
from attn._cache import Cache
from attn._core import isolate, isolated_softmax
from attn._wide import wide
from attn.masks import Causal, Padding
from attn.sparse import _sorted

MANY = 8  # from so many queries on, queries are moved to blocks, not blocks to queries


def narrow(*arrays: Array):
    """The arrays in float32 and without gradients, as selections use them."""
    return tuple(lax.stop_gradient(x.astype(jnp.float32)) for x in arrays)


def largest(s: Float[Array, "*B S"], seen: Bool[Array, "*#B S"], keys: int) -> Bool[Array, "*B S"]:
    """Where the `keys` largest visible scores of each row are, all if there are fewer; ties go to
    the earlier. One that is NaN is among them, to show: what it hides is not known."""
    S = s.shape[-1]
    s, seen, place = aligned(s, seen, jnp.arange(S))
    s = jnp.where(seen, _ranked(jnp.where(jnp.isnan(s), jnp.inf, s)), -jnp.inf)
    if keys >= S:
        return jnp.broadcast_to(seen, s.shape)
    # barriers: to get the last value alone XLA would sort each row, 10 to 27 times as slow. One
    # each: XLA ends the process if a barrier takes both and there are several devices
    value, at = map(lax.optimization_barrier, lax.top_k(s, keys))
    least, last = value[..., -1:], at[..., -1:]
    return seen & ((s > least) | ((s == least) & (place <= last)))


def best(
    s: Float[Array, "*B b"], may: Bool[Array, "*#B b"], must: Bool[Array, "*#B b"] | bool, top: int
) -> Int[Array, "*B n"]:
    """The `top` blocks: first those that `must` be chosen, then those that `may` be, by largest
    score; ties go to the earlier; -1 where there are no more."""
    s = jnp.where(must, jnp.inf, jnp.where(may, _ranked(s), -jnp.inf))
    value, at = lax.top_k(s, min(top, s.shape[-1]))
    return jnp.where(value > -jnp.inf, at, -1)


def _ranked(s: Float[Array, "*B S"]) -> Float[Array, "*B S"]:
    """Scores as `lax.top_k` is to rank them, which puts NaN above all numbers and 0 above -0; and
    finite, as -inf stands for what is not seen."""
    s = jnp.nan_to_num(s)
    return jnp.where(s == 0, 0, s)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blocks:
    """Keys and values in blocks of b; batch rows and key heads are one axis M. Hidden or non-finite
    ones are 0, and `poison` is NaN where one was not finite."""

    k: Float[Array, "M blocks b H"]
    v: Float[Array, "M blocks b D"]
    poison: Float[Array, "M blocks b"]
    seen: Bool[Array, "M blocks b"] | None  # None: all

    @classmethod
    def of(cls, k, v, padding: Padding | None, size: int) -> "Blocks":
        *batch, S, K, _ = k.shape
        seen = jnp.ones(S, bool) if padding is None else padding.seen_keys(S)
        seen = jnp.broadcast_to(seen[..., None], (*batch, S, K))
        (k, k_poison), (v, v_poison) = isolate(wide(k)), isolate(wide(v))
        k, v = (jnp.where(seen[..., None], x, 0) for x in (k, v))
        B, pad = math.prod(batch), -S % size

        def cut(x):
            x = x.reshape(B, *x.shape[len(batch) :])
            x = jnp.swapaxes(x, 1, 2).reshape(B * K, S, *x.shape[3:])
            x = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2))
            return x.reshape(x.shape[0], -(-S // size), size, *x.shape[2:])

        return cls(*map(cut, (k, v, k_poison + v_poison, seen)))

    @classmethod
    def cached(cls, cache: Cache, size: int) -> "Blocks":
        """The blocks of a cache of whole blocks, in place; slots not filled yet are not hidden."""
        *batch, K, L, _ = cache.k.shape
        M, rest = math.prod(batch) * K, len(batch) + 2
        cut = lambda x: x.reshape(M, L // size, size, *x.shape[rest:])
        return cls(*map(cut, (cache.k, cache.v, cache.poison)), None)

    @property
    def some(self) -> Bool[Array, "M blocks"]:
        """Which blocks hold a visible key."""
        return jnp.ones(self.k.shape[:2], bool) if self.seen is None else self.seen.any(-1)

    def meets(
        self, chosen: Int[Array, "M t *G n"], last: Int[Array, "M t *G"]
    ) -> Bool[Array, "M t *G"]:
        """Whether any visible key up to `last` is in the blocks `chosen` by each row."""
        if self.seen is None:
            return (chosen >= 0).any(-1)
        count, size = self.k.shape[1:3]
        place = jnp.arange(count * size).reshape(1, count, size)
        first = jnp.where(self.seen, place, count * size).min(-1)
        first = _of_row(first, jnp.maximum(chosen, 0))
        return ((chosen >= 0) & (first <= last[..., None])).any(-1)

    def attend(
        self,
        q: Float[Array, "M t G H"],
        chosen: Int[Array, "M t n"],
        last: Int[Array, "M t"],
    ) -> Float[Array, "M t G D"]:
        """softmax(q k^T) v over the keys up to `last` of the blocks `chosen` by each row."""
        if q.shape[1] >= MANY and self.seen is not None:
            arrays = self.k, self.v, self.poison, self.seen
            return _sorted.attend(q, chosen, last, *arrays)
        at, size = jnp.maximum(chosen, 0), self.k.shape[2]
        take = lambda x: _of_row(x, at)  # [M, t, n, b, *]
        flat = lambda x: x.reshape(*x.shape[:2], math.prod(x.shape[2:4]), *x.shape[4:])
        j = jnp.add(*aligned(at[..., None] * size, jnp.arange(size)))
        seen = (chosen >= 0)[..., None] & (j <= last[..., None, None])
        seen = seen if self.seen is None else seen & take(self.seen)
        k, v, poison = (take(x).astype(q.dtype) for x in (self.k, self.v, self.poison))
        k, v, poison, seen = map(flat, (k, v, poison, seen))
        w, over = isolated_softmax(jnp.einsum("mtgh,mtxh->mtgx", q, k), seen[:, :, None])
        lost = jnp.where(seen, poison, 0).sum(-1)
        return jnp.einsum("mtgx,mtxd->mtgd", w, v) + lost[..., None, None] + over


# x[at] for each M separately
_of_row = jax.vmap(lambda x, at: x[at])


def by_group(x: Float[Array, "*B T N H"], K: int) -> Float[Array, "M T G H"]:
    """Queries with batch rows and key heads on one axis M, as in `Blocks`."""
    T, N, H = x.shape[-3:]
    B = math.prod(x.shape[:-3])
    return jnp.swapaxes(x.reshape(B, T, K, N // K, H), 1, 2).reshape(B * K, T, N // K, H)


def by_query(x: Shaped[Array, "M T G D"], batch: tuple[int, ...], K: int):
    """The inverse of `by_group`."""
    M, T, G, D = x.shape
    return jnp.swapaxes(x.reshape(M // K, K, T, G, D), 1, 2).reshape(*batch, T, K * G, D)


def last_seen(T, S, K, causal: Causal | None, padding: Padding | None, batch) -> Int[Array, "M T"]:
    """The position up to which each query may see keys, which may be past the last; -1 for padded
    queries and those before the first key."""
    last = jnp.arange(T) + causal.offset if causal is not None else jnp.full(T, S - 1)
    live = jnp.ones(T, bool) if padding is None else padding.seen_queries(T)
    live, last = aligned(live, jnp.maximum(last, -1))
    last = jnp.broadcast_to(jnp.where(live, last, -1), (*batch, T))
    return jnp.repeat(last.reshape(math.prod(batch), T), K, axis=0)
