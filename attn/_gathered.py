"""Blockwise softmax without loops, for GPUs, where launching the kernels of a loop's turn costs
more than its work: all blocks that a mask leaves are computed at once, in a few large products.

An item is a block of queries and a list of blocks of keys that it visits, all lists of one length;
a block that visits more has several items, whose results are merged. In the backward pass an item
is a block of keys and the blocks of queries that visit it. All sums are in a fixed order; the
arithmetic is that of `_tiles`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from attn._axes import conjunction
from attn._core import isolate, marked
from attn._dropout import keep
from attn._tiles import (
    LOG2E,
    Tiling,
    going_back_in_blocks,
    huge,
    undivided,
    wanted,
    whole_rows,
    words,
)
from attn._wide import inverse, wide, wide_dtype
from attn.biases import Bias
from attn.masks import Mask

LEAST, MOST = 256, 2048  # how many tokens a list holds, if there are as many
EACH = 128  # the fixed cost of an item, in tokens
# scores held at once, for each token and head, but at least HELD_LEAST in all: beyond these, groups
# of items take turns
HELD, HELD_LEAST = 640, 2**21
FEW = 8  # if blocks have more different numbers of items, they are grouped by powers of two


def scores(mask: Mask, T: int, S: int, block_q: int, block_k: int) -> int:
    """How many scores are computed."""
    _, at = _items(mask.blocks(T, S, block_q, block_k)[0], block_k)
    return at.size * block_q * block_k


def forward(t: Tiling, q, k, v, mask, bias, dropout):
    """The output [R, T, N, D] of one tile of batch rows, and of each row its largest score, in base
    2, and the sum of its weights, [R, N, T]."""
    some, meet = _meeting(t, mask, bias)
    own, at = _items(some, t.block_k)
    drop = words(t, dropout)
    k, (v, poison) = k.astype(q.dtype), isolate(v.astype(q.dtype))
    k = k + (poison + isolate(k)[1])[..., None]
    q, factor = _scaled(t, marked(q))
    qs, ks, vs = t.to_blocks(q, t.block_q), t.to_blocks(k, t.block_k), t.to_blocks(v, t.block_k)

    score = functools.partial(t.scores, masked=True)

    def attend(rows, columns):
        qa, kb, vb = _take(qs, rows, t.G), _take(ks, columns), _take(vs, columns)
        s, seen = meet(score, rows, columns, _product(qa, kb.mT) * factor)
        p, total, top = whole_rows(s, seen)
        if drop is not None:
            stays = keep(_take(drop.rows, rows, t.G), _take(drop.columns, columns).mT, drop.rate)
            p = jnp.where(stays, p / (1 - drop.rate), 0)
        return _product(p, wide(vb)), top[..., 0], total[..., 0]

    made = _in_turns(t, attend, own[:, None], at)
    out, top, total = _folded(_merged, len(qs), own, made)
    out = out / jnp.where(total == 0, 1, total)[..., None]
    return t.from_blocks(out, t.T, t.K * t.G), *map(t.rows_from_blocks, (top, total))


def backward(t: Tiling, q, k, v, out, top, total, do, d_lse, mask, bias, dropout, d_bias):
    """The gradients of one tile of batch rows, which need no `out`; a bias has none here."""
    some, meet = _meeting(t, mask, bias)
    own, at = _items(some.T, t.block_q)
    drop = words(t, dropout)
    q, k, v = wanted(t, q, k, v, total, do, d_lse)
    q, factor = _scaled(t, q)
    qs, ks, vs = t.to_blocks(q, t.block_q), t.to_blocks(k, t.block_k), t.to_blocks(v, t.block_k)
    dos, asked, d_lses = going_back_in_blocks(t, top, total, do, d_lse)
    score = functools.partial(t.scores, masked=True)

    def met(rows, columns):
        """Queries, their cotangents, keys, and of each pair, transposed, the product, the gradient
        of its weight, and whether dropout keeps it."""
        qa, doa = _take(qs, rows, t.G), _take(dos, rows, t.G)
        kb, vb = _take(ks, columns), _take(vs, columns)
        stays = None
        if drop is not None:
            stays = keep(_take(drop.rows, rows, t.G).mT, _take(drop.columns, columns), drop.rate)
        raw, dp = _product(kb, qa.mT) * factor, _product(wide(vb), doa.mT)
        return wide(qa), doa, wide(kb), raw, dp, stays

    def of_rows(columns, rows):
        *_, raw, dp, stays = met(rows, columns)
        p, total, top = whole_rows(*meet(score, rows, columns, raw.mT))
        dp = dp if stays is None else jnp.where(stays, dp / (1 - drop.rate), 0)
        mean = (p * jnp.where(p > 0, dp.mT, 0)).sum(-1, keepdims=True)
        mean, top, total = (_parted(t, x, rows) for x in (mean, top, total))
        return mean, top[..., 0], total[..., 0]

    # sums of the scores as they are made here: as in `divided` and `mean`, gradients cancel in rows
    made = [_flat(x) for x in _in_turns(t, of_rows, own[:, None], at)]
    mean, top, total = _folded(_merged, len(qs), at.ravel(), made)
    tops, shares = jnp.where(jnp.isfinite(asked), top, asked), inverse(total)
    deltas = jnp.where(jnp.isfinite(asked), mean[..., 0] * shares, 0) - d_lses

    def back(columns, rows):
        qa, doa, kb, raw, dp, stays = met(rows, columns)

        def tile(raw, mask, bias, i, j, dp, stays, top, share, delta):
            weigh = lambda s, seen: undivided(top)(s, seen) * share[..., None, :]
            return t.back(
                raw, dp, weigh, lambda *_: delta, mask, bias, i, j,
                masked=True, stays=stays, rate=drop and drop.rate,
            )  # fmt: skip

        each = (_take(x[..., None], rows, t.G)[..., 0] for x in (tops, shares, deltas))
        used, _, ds = meet(tile, rows, columns, raw, dp, stays, *each)
        return _parted(t, _product(ds.mT, kb), rows), _product(ds, qa), _product(used, doa)

    dq, *made = _in_turns(t, back, own[:, None], at)
    (dq,) = _folded(_added, len(qs), at.ravel(), [_flat(dq)])
    dk, dv = _folded(_added, len(ks), own, made)
    dq = t.from_blocks(dq * t.scale, t.T, t.K * t.G)
    dk = t.from_blocks(dk * (factor / LOG2E), t.S, t.K)
    return dq, dk, t.from_blocks(dv, t.S, t.K), d_bias


def _items(
    visits: Bool[np.ndarray, "own others"], block: int
) -> tuple[Int[np.ndarray, " items"], Int[np.ndarray, "items m"]]:
    """Which block each item belongs to, in order, and which others it visits, of `block` tokens
    each; lists shorter than m are padded with the index after the last block."""
    count = visits.sum(1)
    # the cheapest length: a few blocks that visit many must not make all lists long
    most = max(1, min(count.max(initial=0), MOST // block))
    sizes = np.arange(min(most, -(-LEAST // block)), most + 1)
    items = np.maximum(1, -(-count[:, None] // sizes[None])).sum(0)
    m = sizes[np.argmin(items * (sizes * block + EACH))]
    parts = np.maximum(1, -(-count // m))
    own = np.repeat(np.arange(len(visits), dtype=np.int32), parts)
    at = np.full((len(own), m), visits.shape[1], np.int32)
    row, other = np.nonzero(visits)
    nth = np.arange(len(row)) - _before(count)[row]
    at[_before(parts)[row] + nth // m, nth % m] = other
    return own, at


def _before(count):
    return np.cumsum(count) - count


def _meeting(t: Tiling, mask: Mask, bias: Bias | None):
    """Which blocks meet; and a function that calls run(raw, mask, bias, i, j, *arrays), as
    t.scores, for all items with their mask and bias."""
    there = _There(t, mask, bias)
    of_bias = None if bias is None else there

    def meet(run, rows, columns, raw, *arrays):
        one = lambda raw, i, j, *arrays: run(raw, there, of_bias, i[:, None], j[None], *arrays)
        return jax.vmap(one)(raw, _tokens(rows, t.block_q), _tokens(columns, t.block_k), *arrays)

    return mask.blocks(t.T, t.S, t.block_q, t.block_k)[0], meet


def _tokens(at, block: int):
    """The tokens of blocks [items, m], [items, m block]."""
    each = jnp.arange(block, dtype=at.dtype)[None, None]
    return (jnp.asarray(at)[..., None] * block + each).reshape(len(at), -1)


@dataclasses.dataclass(frozen=True)
class _There:
    """The mask and the bias of blocks that need not be adjacent, and may be past the end."""

    t: Tiling
    mask: Mask
    bias: Bias | None

    def at(self, i, j):
        return conjunction(self.mask.at(i, j), (i < self.t.T) & (j < self.t.S))

    def tile(self, i, j) -> Array:
        of_keys = jax.vmap(self.bias.tile, (None, 0), 3)
        x = jax.vmap(of_keys, (0, None), 2)(
            i.reshape(-1, self.t.block_q, 1), j.reshape(-1, 1, self.t.block_k)
        )  # [R or 1, N or 1, rows, b, columns, c]
        return x.reshape(*x.shape[:2], i.size, j.size)


def _scaled(t: Tiling, q):
    """q in base 2, and the factor still to be applied to its products: a narrow q stays as it is,
    to be multiplied with narrow keys."""
    factor = t.scale * LOG2E
    return (q, factor) if q.dtype.itemsize == 2 else (q * factor, 1.0)


def _product(a, b):
    return jnp.matmul(a, b, preferred_element_type=wide_dtype(a.dtype))


def _take(x, at, G: int = 1):
    """x [blocks, R K, G b, W] at [items, m] as [items, R K, G m b, W]."""
    blocks, RK, length, W = x.shape
    if isinstance(at, np.ndarray) and np.array_equal(at, np.arange(blocks)[:, None]):
        return x
    x = x.reshape(blocks, RK, G, length // G, W)
    x = jnp.take(x, at, axis=0, mode="clip")  # [items, m, R K, G, b, W]
    return x.transpose(0, 2, 3, 1, 4, 5).reshape(len(at), RK, -1, W)


def _parted(t: Tiling, x, rows):
    """x [items, R K, G m b, W] by blocks, [items, m, R K, G b, W]."""
    items, RK, _, W = x.shape
    x = x.reshape(items, RK, t.G, rows.shape[1], t.block_q, W).transpose(0, 3, 1, 2, 4, 5)
    return x.reshape(items, rows.shape[1], RK, t.G * t.block_q, W)


def _flat(x):
    """[items, m, ...] -> [items m, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _in_turns(t: Tiling, run, own, at):
    """run(own, at) of all items, as many at once as can be held."""
    N = t.rows * t.K * t.G
    scores = N * own.size * at.shape[1] * t.block_q * t.block_k
    turns = -(-scores // max(HELD_LEAST, HELD * N * max(t.T, t.S)))
    if turns == 1:
        return run(own, at)
    each = -(-len(own) // turns)
    more = ((0, each * turns - len(own)), (0, 0))
    cut = lambda x: jnp.asarray(np.pad(x, more, mode="edge").reshape(turns, each, -1))
    made = lax.map(lambda x: run(*x), (cut(own), cut(at)))
    return jax.tree.map(lambda x: x.reshape(each * turns, *x.shape[2:])[: len(own)], made)


def _folded(fold, blocks: int, own, made):
    """The items' results folded for each block: fold(there, *x) of x [blocks, n, ...], where
    `there` [blocks, n] is False past a block's last item. `own` is each item's block (`blocks`:
    none)."""
    parts, order = np.bincount(own, minlength=blocks)[:blocks], np.argsort(own, kind="stable")
    if (parts == 1).all() and len(own) == blocks and (order == np.arange(blocks)).all():
        return made
    sizes, back, folded = np.maximum(parts, 1), [], []
    if len(np.unique(sizes)) > FEW:  # blocks of about as many go together
        sizes = 2 ** np.ceil(np.log2(sizes)).astype(int)
    for n in np.unique(sizes):
        group = np.flatnonzero(sizes == n)
        nth = np.arange(n)[None]
        there = nth < parts[group, None]
        at = order[np.where(there, _before(parts)[group, None] + nth, 0)]
        folded.append(fold(there, *(jnp.take(x, at, axis=0, mode="clip") for x in made)))
        back.append(group)
    back = np.argsort(np.concatenate(back))
    return [jnp.take(jnp.concatenate(x), back, axis=0, mode="clip") for x in zip(*folded)]


def _added(there, *made):
    return [jnp.where(there.reshape(*there.shape, 1, 1, 1), x, 0).sum(1) for x in made]


def _merged(there, out, top, total):
    """Merges outputs that are not divided yet, the largest scores and the sums of weights."""
    there = there[..., None, None]
    # an item that sees nothing has no top score; NaN stands as a score larger than all
    top = jnp.where(there & (total != 0), top, -huge(top.dtype))
    most = lax.stop_gradient(top.max(1, keepdims=True))
    shrink = jnp.where(there, jnp.exp2(top - most), 0)
    out = jnp.where(there[..., None], out * shrink[..., None], 0)
    return out.sum(1), most[:, 0], jnp.where(there, total * shrink, 0).sum(1)
