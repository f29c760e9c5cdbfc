"""Patterns that are scattered over the tokens in their own order, but dense once they are sorted.

Every stride-th token touches every block of keys; sorted by position modulo the stride these tokens
are neighbours, and a strided pattern is block diagonal. Masks, biases and dropout are still those
of the tokens' own positions.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from attn._axes import conjunction, namespace
from attn._blockwise import blockwise
from attn._dropout import Dropout
from attn._places import Places
from attn.biases import Bias
from attn.masks import FULL, Mask
from attn.masks.record import frozen
from attn.masks.strided import same_block


@frozen
class Reordered(Mask):
    """`mask` for reordered tokens: (i, j) is (queries[i], keys[j]) of it."""

    mask: Mask = dataclasses.field(metadata={"child": True})
    queries: Places
    keys: Places

    def sees(self, i, j):
        xp = namespace(i, j)
        in_rows, i = i < len(self.queries), self.queries.look_up(i, xp)
        in_columns, j = j < len(self.keys), self.keys.look_up(j, xp)
        return conjunction(self.mask.sees(i, j), in_rows, in_columns)

    def tiles(self, i0, i1, j0, j1):
        # by the rectangle of positions around each block
        (i0, i1), (j0, j1) = _around(self.queries, i0, i1), _around(self.keys, j0, j1)
        return self.mask.tiles(i0, i1, j0, j1)

    def terms(self):
        yield from self.mask.terms()


@frozen
class SameGroup(Mask):
    """Query and key have the same number; where numbers are sorted, the groups are blocks."""

    queries: Places
    keys: Places

    def sees(self, i, j):
        xp = namespace(i, j)
        return self.queries.look_up(i, xp) == self.keys.look_up(j, xp)

    def tiles(self, i0, i1, j0, j1):
        return same_block(*_around(self.queries, i0, i1), *_around(self.keys, j0, j1), 1)


@frozen
class Around(Mask):
    """Points of a plane at most `reach` apart in both coordinates."""

    queries: tuple[Places, Places]
    keys: tuple[Places, Places]
    reach: int

    def sees(self, i, j):
        xp = namespace(i, j)
        place = zip(self.queries, self.keys)
        rows, columns = (abs(a.look_up(i, xp) - b.look_up(j, xp)) for a, b in place)
        return (rows <= self.reach) & (columns <= self.reach)

    def tiles(self, i0, i1, j0, j1):
        some, every = True, True
        for rows, columns in zip(self.queries, self.keys):
            (a0, a1), (b0, b1) = _around(rows, i0, i1), _around(columns, j0, j1)
            some = some & (a0 - b1 <= self.reach) & (b0 - a1 <= self.reach)
            every = every & (a1 - b0 <= self.reach) & (b1 - a0 <= self.reach)
        return some, every


def _around(places: Places, first, last):
    """The least and the largest place of each range, of the shape of `first`."""
    at = places.array()
    ends = np.stack([first.ravel(), last.ravel() + 1], -1).ravel()
    # of the ranges, which reduceat takes at every other place, the last may end with the array
    extremes = lambda ufunc: ufunc.reduceat(np.append(at, at[-1]), ends)[::2].reshape(first.shape)
    return extremes(np.minimum).astype(np.int64), extremes(np.maximum).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a pattern, disjoint from the others: its pairs, and the queries and keys that it
    covers, in the order in which it is dense (None: all, in their own order). `near`, in that
    order, contains the pattern's pairs: what is outside is never visited."""

    pattern: Mask
    queries: Places | None = None
    keys: Places | None = None
    near: Mask = FULL

    @property
    def lies(self) -> bool:
        """Whether it covers all queries and keys, in their own order."""
        return self.queries is None and self.keys is None


def by_residue(pattern: Mask, n: int, T: int, S: int) -> Part:
    """A pattern of pairs whose positions are equal modulo n."""
    order = lambda L: np.lexsort((np.arange(L), np.arange(L) % n))
    rows, columns = order(T), order(S)
    near = SameGroup(Places.of(rows % n), Places.of(columns % n))
    return Part(pattern, Places.of(rows), Places.of(columns), near)


def laid_out(part: Part, T: int, S: int, mask: Mask = FULL) -> tuple[Mask, int, int]:
    """What a part shows of `mask`, in its order of queries and keys, and the numbers of these."""
    mask = mask & part.pattern.sized(T, S)
    if part.lies:
        return mask & part.near, T, S
    rows, columns = _order(part.queries, T), _order(part.keys, S)
    return Reordered(mask, rows, columns) & part.near, len(rows), len(columns)


def _order(places: Places | None, length: int) -> Places:
    return Places.of(np.arange(length)) if places is None else places


def attend_part(part: Part, q, k, v, mask: Mask, bias: Bias | None, *, scale, dropout, block):
    """The output and log-sum-exp of one part, for checked arguments (`mask` bound to lengths)."""
    T, S = q.shape[-3], k.shape[-3]
    seen, _, _ = laid_out(part, T, S, mask)
    options = {"scale": scale, "block": block}
    if part.lies:
        return blockwise(q, k, v, seen, bias, dropout=dropout, **options)
    rows, columns = _order(part.queries, T), _order(part.keys, S)
    bias = None if bias is None else bias.reordered(rows, columns)
    if dropout is not None:
        words = _taken(dropout.rows, part.queries, 2), _taken(dropout.columns, part.keys, 2)
        dropout = Dropout(*words, dropout.rate)
    q, k, v = _taken(q, part.queries, 3), _taken(k, part.keys, 3), _taken(v, part.keys, 3)
    out, lse = blockwise(q, k, v, seen, bias, dropout=dropout, **options)
    if part.queries is None:
        return out, lse
    # back to the queries' own order; one that this part does not cover sees nothing in it
    back = np.full(T, len(rows), np.int32)
    back[rows.array()] = np.arange(len(rows))
    if len(rows) < T:
        more = lambda x, axis: [(0, 0)] * (x.ndim - axis) + [(0, 1)] + [(0, 0)] * (axis - 1)
        out = jnp.pad(out, more(out, 3))
        lse = jnp.pad(lse, more(lse, 2), constant_values=-jnp.inf)
    take = lambda x, axis: jnp.take(x, back, axis=x.ndim - axis)
    return take(out, 3), take(lse, 2)


def _taken(x, places: Places | None, axis: int):
    """x at these places of an axis counted from the end, or x itself where it lies in order."""
    return x if places is None else jnp.take(x, places.array(), axis=x.ndim - axis)
