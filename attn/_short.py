"""Blockwise softmax for short sequences, without loops: each block of queries against the whole
range of keys that it may see, cut out at trace time. The arithmetic is that of `_tiles`.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from attn._tiles import (
    LOG2E,
    Tiling,
    coming_back,
    divided,
    going_back_in_blocks,
    going_in,
    kept,
    mean,
    transposed_product,
    whole_rows,
    words,
)
from attn.masks import Mask


def scores(mask: Mask, T: int, S: int, block_q: int, block_k: int) -> int:
    """How many scores are computed."""
    return block_q * int(sum(stop - start for start, stop, _ in ranges(mask, T, S, block_q)))


def forward(t: Tiling, q, k, v, mask, bias, dropout):
    """The output [R, T, N, D] of one tile of batch rows, and of each row its largest score, in base
    2, and the sum of its weights, [R, N, T]."""
    drop = words(t, dropout)
    q, k, v = going_in(t, q, k, v)
    qs = t.to_blocks(q, t.block_q)  # [T/b, R K, G b, H]
    (k,), (v,) = t.to_blocks(k, t.S), t.to_blocks(v, t.S)  # [R K, S, H], [R K, S, D]
    made = []
    for a, keys, i, j, masked in _rows(t, mask):
        s, seen = t.scores(qs[a] @ k[:, keys].mT, mask, bias, i, j, masked=masked)
        p, total, top = whole_rows(s, seen)
        if drop is not None:
            p = jnp.where(kept(drop, a, 0)[..., keys], p / (1 - drop.rate), 0)
        made.append((p @ v[:, keys] / jnp.where(total == 0, 1, total), top, total))
    out, top, total = (jnp.stack(x) for x in zip(*made))
    rows = (t.rows_from_blocks(x[..., 0]) for x in (top, total))
    return t.from_blocks(out, t.T, t.K * t.G), *rows


def backward(t: Tiling, q, k, v, out, top, total, do, d_lse, mask, bias, dropout, d_bias):
    """The gradients of one tile of batch rows, which need no `out`."""
    drop = words(t, dropout)
    q, k, v = coming_back(t, q, k, v, total, do, d_lse)
    qs = t.to_blocks(q, t.block_q)
    dos, tops, d_lses = going_back_in_blocks(t, top, total, do, d_lse)
    (k,), (v,) = t.to_blocks(k, t.S), t.to_blocks(v, t.S)
    dq, dk, dv = [], jnp.zeros_like(k), jnp.zeros_like(v)
    for a, keys, i, j, masked in _rows(t, mask):
        kb, vb, qa, doa = k[:, keys], v[:, keys], qs[a], dos[a]
        stays = None if drop is None else kept(drop, a, 0, transposed=True)[..., keys, :]
        delta = lambda p, dp, a=a: mean(p, dp) - d_lses[a]
        # transposed scores [R K, c, G b]
        used, d_biased, ds = t.back(
            kb @ qa.mT, vb @ doa.mT, divided(tops[a]), delta, mask, bias, i, j,
            masked=masked, stays=stays, rate=drop and drop.rate,
        )  # fmt: skip
        if d_bias is not None:
            d_bias = bias.add_tile(d_bias, t.unarrange(d_biased), i, j)
        dq.append(transposed_product(kb, ds))
        dk = dk.at[:, keys].add(ds @ qa)
        dv = dv.at[:, keys].add(used @ doa)
    dq = t.from_blocks(jnp.stack(dq) * t.scale, t.T, t.K * t.G)
    dk = t.from_blocks(dk[None] / LOG2E, t.S, t.K)
    return dq, dk, t.from_blocks(dv[None], t.S, t.K), d_bias


def _rows(t: Tiling, mask):
    """(a, keys, i, j, masked): each block of queries, the range of keys that it may see, and
    whether any of them is hidden."""
    for a, (start, stop, full) in enumerate(ranges(mask, t.T, t.S, t.block_q)):
        i = a * t.block_q + np.arange(t.block_q)[:, None]
        yield a, slice(start, stop), i, np.arange(start, stop)[None, :], not full


def ranges(mask: Mask, T: int, S: int, block_q: int) -> Iterator[tuple[int, int, bool]]:
    """For each block of queries, where the keys that it may see begin and end, and whether it sees
    all of them."""
    for some, every in zip(*mask.blocks(T, S, block_q, STEP)):
        seen = np.flatnonzero(some)
        # a block that sees nothing still looks at one range of keys, all hidden
        start, stop = (seen[0] * STEP, min(S, (seen[-1] + 1) * STEP)) if seen.size else (0, 1)
        yield start, stop, every[start // STEP : -(-stop // STEP)].all()


STEP = 32  # keys are cut at multiples of this
