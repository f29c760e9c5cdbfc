"""Blockwise softmax where a mask leaves each block of queries one strip of keys, all of about the
same width, as a sliding window does: a loop over the blocks of queries, each strip sliced out and
used at once. The arithmetic is that of `_tiles`.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from attn._core import isolate, marked
from attn._dropout import Dropout, keep
from attn._tiles import (
    LOG2E,
    Tiling,
    divided,
    going_back,
    mean,
    sending,
    transposed_product,
    whole_rows,
)
from attn.masks import Mask

STEP = 32  # strips begin and end at multiples of this
# of long loops, how many strips a turn takes: one is too little work for two threads
LONG, FORWARD, BACKWARD = 16, 4, 2


def scores(mask: Mask, T: int, S: int, block_q: int, width: int) -> int:
    """How many scores are computed: every block of queries meets a strip of keys."""
    return -(-T // block_q) * block_q * width


def strips(mask: Mask, T: int, S: int, block_q: int, rows=slice(None)) -> tuple[np.ndarray, int]:
    """(where the strip of each block of queries begins, how wide all of them are); of these `rows`
    of blocks."""
    some = mask.blocks(T, S, block_q, STEP, rows)[0]
    seen = some.any(1)
    first = np.where(seen, np.argmax(some, 1), 0) * STEP
    end = np.where(seen, (some.shape[1] - np.argmax(some[:, ::-1], 1)) * STEP, 1)
    width = min(S, int((end - first).max()))
    return np.minimum(first, S - width).astype(np.int32), width


def forward(t: Tiling, q, k, v, mask, bias, dropout):
    """The output [R, T, N, D] of one tile of batch rows, and of each row its largest score, in base
    2, and the sum of its weights, [R, N, T]."""
    starts, width, queries, cut = _geometry(t, mask)
    q, dropout, poison = queries(q), _padded(queries, dropout), _poison(q, k, v)

    def block(a, carry):
        row, start = a * t.block_q, starts[a]
        qa, spoilt = marked(cut(q, row)) * (t.scale * LOG2E), cut(poison, start, width)
        keys = cut(k, start, width).astype(q.dtype) + spoilt
        values = jnp.where(jnp.isnan(spoilt), 0, cut(v, start, width).astype(q.dtype))
        i, j = _indices(t, row, start, width)
        s, seen = t.scores(qa @ keys.mT, mask, bias, i, j, masked=True)
        p, total, top = whole_rows(s, seen)
        if dropout is not None:
            stays = keep(*_words(dropout, cut, row, start, width, transposed=False), dropout.rate)
            p = jnp.where(stays, p / (1 - dropout.rate), 0)
        out = p @ values / jnp.where(total == 0, 1, total)
        return [_put(t, *x, row) for x in zip(carry, (out, top, total))]

    zeros = lambda width: jnp.zeros_like(q, shape=(*q.shape[:-1], width))
    carry = _each(block, len(starts), [zeros(v.shape[-1]), zeros(1), zeros(1)], FORWARD)
    out, top, total = (x[:, : t.T] for x in carry)
    return out, top[..., 0].mT, total[..., 0].mT


def backward(t: Tiling, q, k, v, out, top, total, do, d_lse, mask, bias, dropout, d_bias):
    """The gradients of one tile of batch rows, which need no `out`."""
    starts, width, queries, cut = _geometry(t, mask)
    # in blocks, as the loop uses them: it would recompute them for each score
    tops = t.rows_to_blocks(going_back(top, total, do.swapaxes(1, 2), d_lse), jnp.inf)
    q, sent = queries(q), queries(sending(t, q, k, total, do, d_lse))
    d_lses, do = t.rows_to_blocks(d_lse), queries(do)
    dropout = _padded(queries, dropout)
    poison = _poison(q, k, v)

    def block(a, carry):
        dq, dk, dv, d_bias = carry
        row, start = a * t.block_q, starts[a]
        qa = jnp.where(cut(sent, row), isolate(cut(q, row))[0], 0) * t.scale
        doa = isolate(cut(do, row))[0]
        spoilt = jnp.isnan(cut(poison, start, width))
        clean = lambda x: jnp.where(spoilt, 0, cut(x, start, width).astype(q.dtype))
        keys, values = clean(k), clean(v)
        i, j = _indices(t, row, start, width)
        stays = None
        if dropout is not None:
            stays = keep(*_words(dropout, cut, row, start, width, transposed=True), dropout.rate)
        delta = lambda p, dp: mean(p, dp) - d_lses[a]
        # transposed scores [R K, c, G b]
        used, d_biased, ds = t.back(
            keys @ (qa * LOG2E).mT, values @ doa.mT, divided(tops[a]), delta, mask, bias, i, j,
            masked=True, stays=stays, rate=dropout and dropout.rate,
        )  # fmt: skip
        if d_bias is not None:
            d_bias = bias.add_tile(d_bias, t.unarrange(d_biased), i, j)
        dq = _put(t, dq, transposed_product(keys, ds) * t.scale, row)
        dk = _put(t, dk, cut(dk, start, width) + ds @ qa, start)
        dv = _put(t, dv, cut(dv, start, width) + used @ doa, start)
        return dq, dk, dv, d_bias

    carry = *(jnp.zeros_like(x, dtype=q.dtype) for x in (q, k, v)), d_bias
    dq, dk, dv, d_bias = _each(block, len(starts), carry, BACKWARD)
    return dq[:, : t.T], dk, dv, d_bias


def _each(block, count: int, carry, turn: int):
    return lax.fori_loop(0, count, block, carry, unroll=turn if count >= LONG else 1)


def _poison(q, k, v):
    """NaN where a key or its value is not finite, else 0, [R, S, K, 1]: looked for once, as each
    key is in several strips."""
    return (isolate(k)[1] + isolate(v)[1]).astype(q.dtype)[..., None]


def _geometry(t: Tiling, mask):
    """Where strips begin, their width, what pads queries to whole blocks, and what cuts `length`
    tokens of [R, L, heads, W] out as [R K, (heads / K) length, W]."""
    starts, width = strips(mask, t.T, t.S, t.block_q)
    more = -t.T % t.block_q

    def queries(x):
        pad = [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2)
        return jnp.pad(x, pad) if more else x

    def cut(x, start, length=t.block_q):
        return t.to_blocks(lax.dynamic_slice_in_dim(x, start, length, 1), length)[0]

    return jnp.asarray(starts), width, queries, cut


def _put(t: Tiling, x, new, start):
    """x [R, L, heads, W] with `new`, as `cut` gives it, back in its place."""
    length = new.shape[1] * t.K // x.shape[2]
    return lax.dynamic_update_slice_in_dim(
        x, t.from_blocks(new[None], length, x.shape[2]), start, 1
    )


def _indices(t: Tiling, row, start, width):
    return row + jnp.arange(t.block_q)[:, None], start + jnp.arange(width)[None, :]


def _padded(queries, dropout: Dropout | None) -> Dropout | None:
    if dropout is None:
        return None
    rows = queries(dropout.rows[..., None])
    return Dropout(rows, dropout.columns[..., None], dropout.rate)


def _words(dropout: Dropout, cut, row, start, width, *, transposed):
    rows, columns = cut(dropout.rows, row), cut(dropout.columns, start, width)
    return (rows.mT, columns) if transposed else (rows, columns.mT)
