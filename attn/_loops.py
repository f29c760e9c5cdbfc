"""Blockwise softmax by two loops, over blocks of queries and over the blocks of keys that each of
them visits (backward, the other way around). Blocks that a mask shows whole are visited without it.
The arithmetic is that of `_tiles`.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from attn._core import isolate
from attn._tiles import (
    LOG2E,
    Tiling,
    coming_back,
    going_back_in_blocks,
    going_in,
    huge,
    kept,
    undivided,
    words,
)
from attn._wide import inverse
from attn.masks import Mask


def scores(mask: Mask, T: int, S: int, block_q: int, block_k: int) -> int:
    """How many scores are computed."""
    return int(mask.blocks(T, S, block_q, block_k)[0].sum()) * block_q * block_k


def forward(t: Tiling, q, k, v, mask, bias, dropout):
    """The output [R, T, N, D] of one tile of batch rows, and of each row its largest score, in base
    2, and the sum of its weights, [R, N, T]."""
    visit = _visited(t, mask)
    (full_at, full_n), (part_at, part_n) = map(_lists, visit)
    drop = words(t, dropout)
    q, k, v = going_in(t, q, k, v)
    qs = t.to_blocks(q, t.block_q)  # [T/b, R K, G b, H]
    ks, vs = t.to_blocks(k, t.block_k).mT, t.to_blocks(v, t.block_k)  # [S/c, R K, H, c], [.., c, D]
    big = huge(q.dtype)
    low = -big  # not -inf: -inf - -inf is nan

    def query_block(a):
        qa = qs[a]

        def step(masked, at, x, carry):
            o, m, total = carry
            b = at[a, x]
            s, seen = t.scores(qa @ ks[b], mask, bias, *_indices(t, a, b), masked=masked)
            s = jnp.where(jnp.isnan(s), big, s)
            if masked:
                s = jnp.where(seen, s, -jnp.inf)
            m_new = lax.stop_gradient(jnp.maximum(m, s.max(-1)))
            p = jnp.exp2(s - m_new[..., None])
            shrink = jnp.exp2(m - m_new)
            total = total * shrink + p.sum(-1)
            if drop is not None:
                p = jnp.where(kept(drop, a, b), p / (1 - drop.rate), 0)
            return o * shrink[..., None] + p @ vs[b], m_new, total

        # zeros made from qa vary over the same mesh axes as it does under shard_map
        zero = jnp.zeros_like(qa[..., 0])
        carry = (jnp.broadcast_to(zero[..., None], (*zero.shape, vs.shape[-1])), zero + low, zero)
        if visit[0].any():
            carry = lax.fori_loop(0, full_n[a], functools.partial(step, False, full_at), carry)
        if visit[1].any():
            carry = lax.fori_loop(0, part_n[a], functools.partial(step, True, part_at), carry)
        o, m, total = carry
        total = jnp.where(m >= big, jnp.nan, total)
        return o / jnp.where(total == 0, 1, total)[..., None], m, total

    out, *rows = lax.map(query_block, jnp.arange(len(qs)))
    return t.from_blocks(out, t.T, t.K * t.G), *map(t.rows_from_blocks, rows)


def backward(t: Tiling, q, k, v, out, top, total, do, d_lse, mask, bias, dropout, d_bias):
    """The gradients of one tile of batch rows."""
    visit = _visited(t, mask)
    (full_at, full_n), (part_at, part_n) = (_lists(x.T) for x in visit)
    drop = words(t, dropout)
    q, k, v = coming_back(t, q, k, v, total, do, d_lse)
    qs = t.to_blocks(q, t.block_q)
    # do . out of each row (Dao et al. 2022)
    deltas = t.rows_to_blocks((isolate(out)[0] * isolate(do)[0]).sum(-1).mT)
    dos, tops, d_lses = going_back_in_blocks(t, top, total, do, d_lse)
    shares = inverse(t.rows_to_blocks(total, 1.0))
    # weights are not divided by their sum: what they are multiplied with is
    dos, deltas = dos * shares[..., None], (deltas - d_lses) * shares
    ks, vs = t.to_blocks(k, t.block_k), t.to_blocks(v, t.block_k)

    def key_block(carry, b):
        kb, vb = ks[b], vs[b]
        kt = kb.mT

        def step(masked, at, x, carry):
            dq, dk, dv, d_bias = carry
            a = at[b, x]
            qa, do = qs[a], dos[a]
            i, j = _indices(t, a, b)
            stays = None if drop is None else kept(drop, a, b, transposed=True)
            # transposed scores [R K, c, G b]: XLA multiplies these without transposing p
            used, d_biased, ds = t.back(
                kb @ qa.mT, vb @ do.mT, undivided(tops[a]), lambda *_: deltas[a], mask, bias, i, j,
                masked=masked, stays=stays, rate=drop and drop.rate,
            )  # fmt: skip
            if d_bias is not None:
                d_bias = bias.add_tile(d_bias, t.unarrange(d_biased), i, j)
            dv = dv + used @ do
            dk = dk + ds @ qa
            dq = lax.dynamic_update_index_in_dim(dq, dq[a] + (kt @ ds).mT, a, 0)
            return dq, dk, dv, d_bias

        dq, d_bias = carry
        carry = dq, jnp.zeros_like(kb), jnp.zeros_like(vb), d_bias
        if visit[0].any():
            carry = lax.fori_loop(0, full_n[b], functools.partial(step, False, full_at), carry)
        if visit[1].any():
            carry = lax.fori_loop(0, part_n[b], functools.partial(step, True, part_at), carry)
        dq, dk, dv, d_bias = carry
        return (dq, d_bias), (dk, dv)

    carry = jnp.zeros_like(qs), d_bias
    (dq, d_bias), (dk, dv) = lax.scan(key_block, carry, jnp.arange(len(ks)))
    dq = t.from_blocks(dq * t.scale, t.T, t.K * t.G)
    return dq, t.from_blocks(dk / LOG2E, t.S, t.K), t.from_blocks(dv, t.S, t.K), d_bias


def _visited(t: Tiling, mask: Mask):
    """(full, partial): which blocks to visit unmasked, and which with the mask, bool[a, b]."""
    some, every = mask.blocks(t.T, t.S, t.block_q, t.block_k)
    if t.S % t.block_k:
        every[:, -1] = False  # the last block holds keys past S, which must be masked
    return every & some, some & ~every


def _lists(visited):
    """For each row of a boolean matrix, where it is True (padded with 0) and how often."""
    count = visited.sum(1)
    at = np.zeros((len(visited), max(1, count.max(initial=0))), np.int32)
    for row, hits in enumerate(visited):
        at[row, : count[row]] = np.nonzero(hits)[0]
    return jnp.asarray(at), jnp.asarray(count, jnp.int32)


def _indices(t: Tiling, a, b):
    """Query and key positions of block (a, b), [b, 1] and [1, c]."""
    i = a * t.block_q + jnp.arange(t.block_q)[:, None]
    return i, b * t.block_k + jnp.arange(t.block_k)[None, :]
