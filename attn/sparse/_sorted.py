"""Queries sorted by the blocks they chose, so that each block meets its queries in matrix products.

Gathering keys would move a block for every query that chose it; here queries move instead, to each
of their blocks, as tokens move to the experts of a mixture (and as in MoBA's own code).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._axes import aligned
from attn._merge import part_weights
from attn.sparse._buckets import padded

ROWS = 64  # queries in a tile, at most
TILE = 2**19  # scores of the tiles that are made at once


def tile_rows(pairs: int, blocks: int) -> int:
    """How many queries a tile holds: about as many as choose a block, as last tiles are partial."""
    # int: settings may be NumPy's
    return max(8, min(ROWS, 2 ** (int(pairs // max(1, blocks)).bit_length() - 1)))


def least_queries(blocks: int, chosen: int) -> int:
    """How many queries to sort at once so that tiles are full."""
    return blocks * ROWS // chosen


def flops(M: int, t: int, G: int, n: int, blocks: int, b: int, H: int, D: int) -> int:
    """Operations of the matrix products of `attend` for these sizes."""
    rows = tile_rows(t * n, blocks)
    tiles, size = most_tiles(t * n, blocks, rows), _at_once(M * G * rows * b)
    return 2 * M * G * (padded(tiles, size) * rows * b * (H + D) + t * n * D)


def most_tiles(pairs: int, blocks: int, rows: int) -> int:
    """The most tiles ever needed: each block leaves less than one tile unfilled."""
    return -(-pairs // rows) + blocks


def _at_once(scores: int) -> int:
    """How many tiles of `scores` scores are processed at once."""
    return max(1, TILE // scores)


def attend(
    q: Float[Array, "M t G H"],
    chosen: Int[Array, "M t n"],
    last: Int[Array, "M t"],
    k: Float[Array, "M blocks b H"],
    v: Float[Array, "M blocks b D"],
    poison: Float[Array, "M blocks b"],
    seen: Bool[Array, "M blocks b"],
) -> Float[Array, "M t G D"]:
    """softmax(q k^T) v over the keys up to `last` of the blocks `chosen` (-1 for none), which must
    differ. O(t n b) time; memory O(t n) and that of the keys."""
    (M, t, G, _), n, (blocks, b) = q.shape, chosen.shape[-1], k.shape[1:3]
    rows = tile_rows(t * n, blocks)
    pair, block, there, slot = jax.vmap(functools.partial(_sorted, blocks=blocks, rows=rows))(
        chosen
    )
    take = jax.vmap(lambda x, at: x[at])
    row = pair // n
    tiles = (
        take(q, row),  # [M, tiles, rows, G, H]
        take(last, row)[..., None] - block[..., None, None] * b,
        there[..., None],
        *(take(x, block) for x in (k, v, poison, seen)),
    )
    out, lse = _by_groups(tiles, _at_once(M * G * rows * b))
    flat = lambda x: x.reshape(M, -1, *x.shape[3:])
    out, lse = (take(flat(x), slot) for x in (out, lse))  # [M, t, n, G, D] and [M, t, n, G]
    return _merged(out, jnp.where((chosen >= 0)[..., None], lse, -jnp.inf))


def _merged(out: Float[Array, "M t n G D"], lse: Float[Array, "M t n G"]):
    """The softmax over all blocks of each query, NaN where that over one of them is."""
    lost = jnp.isnan(lse).any(2)
    lse = jnp.where(lost[:, :, None], 0, lse)
    top = lax.stop_gradient(jnp.maximum(lse.max(2, keepdims=True), jnp.finfo(lse.dtype).min))
    share = jnp.exp(lse - top)
    total = share.sum(2, keepdims=True)
    # divided first: a sum of several of the largest numbers would be infinite
    share = share / jnp.where(total == 0, 1, total)
    mean = jnp.einsum("mtng,mtngd->mtgd", share, out)
    return mean + jnp.where(lost, jnp.nan, 0)[..., None]


def _sorted(chosen: Int[Array, "t n"], *, blocks: int, rows: int):
    """For each tile the pairs (t, n) it holds, its block and which of its rows are real; for each
    pair its row among those of all tiles."""
    t, n = chosen.shape
    wanted = jnp.where(chosen < 0, blocks, chosen).reshape(-1)
    order = jnp.argsort(wanted, stable=True)
    first = jnp.searchsorted(wanted[order], jnp.arange(blocks + 1))
    tiles = -(-jnp.diff(first) // rows)
    ends = jnp.cumsum(tiles)
    begins = jnp.concatenate([ends - tiles, ends[-1:]])
    tile = jnp.arange(most_tiles(t * n, blocks, rows))
    block = jnp.searchsorted(ends, tile, side="right")
    at = first[block][:, None] + (tile - begins[block])[:, None] * rows + jnp.arange(rows)[None]
    block = jnp.minimum(block, blocks - 1)
    there = (at < first[block + 1][:, None]) & (tile < ends[-1])[:, None]
    pair = order[jnp.clip(at, 0, t * n - 1)]
    place = jnp.zeros_like(order).at[order].set(jnp.arange(t * n, dtype=order.dtype))
    slot = begins[wanted] * rows + place - first[wanted]
    return pair, block, there, jnp.minimum(slot, len(tile) * rows - 1).reshape(t, n)


def _by_groups(tiles, size: int):
    """`_tile`, `size` tiles at once: [M, tiles, rows, G, D] and [M, tiles, rows, G]."""
    M, count = tiles[0].shape[:2]
    if count <= size:
        return _tile(*tiles)
    groups = -(-count // size)
    cut = lambda x: jnp.moveaxis(
        jnp.pad(x, [(0, 0), (0, groups * size - count)] + [(0, 0)] * (x.ndim - 2)).reshape(
            M, groups, size, *x.shape[2:]
        ),
        1,
        0,
    )
    body = jax.checkpoint(lambda x: _tile(*x), prevent_cse=False)
    back = lambda x: jnp.moveaxis(x, 0, 1).reshape(M, -1, *x.shape[3:])[:, :count]
    return jax.tree.map(back, lax.map(body, jax.tree.map(cut, tiles)))


def _tile(q, last, there, k, v, poison, seen):
    """Softmax of the queries of a tile over the keys of its block, and its log-sum-exp."""
    *tiles, rows, G, H = q.shape
    place, last = aligned(jnp.arange(k.shape[-2]), last)
    shown = there & (place <= last) & seen[..., None, :]  # [., rows, b]
    every = shown if G == 1 else jnp.repeat(shown, G, axis=-2)
    s = q.reshape(*tiles, rows * G, H) @ k.astype(q.dtype).mT
    w, lse = part_weights(s, every)
    lost = jnp.where(shown, poison[..., None, :].astype(q.dtype), 0).sum(-1)
    out = (w @ v.astype(q.dtype)).reshape(*tiles, rows, G, -1)
    return out, lse.reshape(*tiles, rows, G) + lax.stop_gradient(lost)[..., None]
