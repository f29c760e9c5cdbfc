"""Exact softmax attention by blocks: O(T) memory forward and backward, any mask, any bias.

Online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867; Rabe & Staats 2021,
arXiv:2112.05682) with the recomputing backward pass of FlashAttention (Dao et al. 2022,
arXiv:2205.14135). Blocks that the static part of the mask empties are never visited; blocks it
fills are visited without a mask. Scores are kept in base 2, because exp2 is cheaper than exp.
Short sequences take `attn/_short.py`, which makes the same arrays without loops, and masks like a
sliding window `attn/_strips.py`, which loops over blocks of queries alone. On a GPU, longer ones
take `attn/_gathered.py`, which visits all blocks at once.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from attn import _gathered, _short, _strips
from attn._core import inverse, isolate, number_of, scaled, wide
from attn._dropout import Dropout
from attn._loops import loops_are_slow
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
from attn._varying import vary
from attn.biases import Bias
from attn.masks import Mask


def blockwise(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    mask: Mask,
    bias: Bias | None,
    *,
    scale: float | Array | None,
    logit_cap: float | None = None,
    block: int | tuple[int, int] | None = None,
    dropout: Dropout | None = None,
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(scale q k^T + bias) v and the log-sum-exp of each row (-inf where it sees nothing).

    Takes arguments that `check_qkv` passed. O(visited blocks) time, O(T + S) memory.
    """
    *batch, T, N, H = q.shape
    S, K, D = *k.shape[-3:-1], v.shape[-1]
    B = math.prod(batch)
    if B == 0 or T == 0 or S == 0:
        out = jnp.zeros((*batch, T, N, D), q.dtype)
        return out, jnp.full((*batch, T, N), -jnp.inf, wide(q).dtype)
    if D == 0:  # no output, but log-sum-exps all the same
        v = jnp.zeros_like(k[..., :1])
    form = "loops"
    known = B if isinstance(B, int) else 1  # `jax.export` may keep the batch as a symbol
    if block is None:
        form, block = choose(mask, T, S, N, known)
    block_q, block_k = block if isinstance(block, tuple) else (block, block)
    # score tiles of about 2 MB stay in cache
    fits = [r for r in range(1, known + 1) if B % r == 0 and r * N * block_q * block_k <= 2**19]
    number = number_of(scale, H)
    if number is None:  # an array, which may be learned
        q, number = scaled(q, scale), 1.0
    rows = known if form == "gathered" else max(fits, default=1)
    tiling = Tiling(B, T, S, K, N // K, block_q, block_k, rows, logit_cap, number)
    q = (q if form == "gathered" else wide(q)).reshape(B, T, N, H)
    mask = mask.merge_batch(tuple(batch))
    if bias is not None:
        whole = -(-T // block_q) * block_q, -(-S // block_k) * block_k
        bias = bias.prepare(tuple(batch), *whole, block=(block_q, block_k))
    if dropout is not None:
        flat = lambda x, L: x.reshape(B, L, -1)
        dropout = Dropout(flat(dropout.rows, T), flat(dropout.columns, S), dropout.rate)
    k, v = k.reshape(B, S, K, H), v.reshape(B, S, K, v.shape[-1])
    # under shard_map what all shards share must vary as the rest does, for its gradient to
    q, k, v, bias = vary((q, k, v, bias), mask, dropout)
    # jitted also when nothing else is: `shard_map` cannot run the rule of its derivative eagerly
    attend = jax.jit(_attend, static_argnums=(0, 1))
    out, lse = attend(tiling, form, q, k, v, mask, bias, dropout)
    out = out[..., :D].reshape(*batch, T, N, D).astype(jnp.result_type(k))
    return out, lse.reshape(*batch, T, N)


# (query block, key block, relative time a visited score takes): `scripts/blocks` on two AMD EPYC
# cores, float32, batch 2, 4 heads, width 64
BLOCKS = (
    (64, 64, 1.6),
    (128, 128, 1.5),
    (128, 256, 1.4),
    (256, 256, 1.35),
    (256, 512, 1.0),
    (512, 512, 1.02),
)
# (query block, relative time) of strips
STRIPS = ((64, 1.2), (128, 1.0), (256, 1.0))
# a strip of fewer scores, over all batch rows and heads, runs on one of two threads
ALONE, ALONE_RATE = 2**18, 1.4
# (query block, key block, relative time) of blocks that are visited at once, on a GPU
GATHERED = ((64, 64, 1.3), (128, 128, 1.0), (128, 256, 1.0))
# of more scores a token a loop's turns have enough to do, and what is held would not be linear in T
GATHERED_MOST = 2048
SHORT = 512  # up to this length, rows of SHORT_ROWS queries against all keys that they see
SHORT_ROWS = 128


def choose(mask: Mask, T: int, S: int, N: int, B: int = 1) -> tuple[str, tuple[int, int]]:
    """The form and the block sizes that visit the least, weighed by how fast those run; for short
    sequences, rows of queries and all keys."""
    if max(T, S) <= SHORT:
        return "short", (_even_block(T, SHORT_ROWS), S)
    return (_cached_choice if mask.static else _choice)(mask, T, S, N, B, loops_are_slow())


def _choice(mask, T, S, N, B, at_once):
    if at_once:
        sizes = [((_even_block(T, b), _even_block(S, c)), rate) for b, c, rate in GATHERED]
        found = [(_gathered.visited(mask, T, S, *block), rate, block) for block, rate in sizes]
        scores, _, block = min(found, key=lambda x: x[0] * x[1])
        if scores <= GATHERED_MOST * max(T, S):
            return "gathered", block

    def cost(count, block_q, block_k, rate):
        too_large = max(1.0, N * block_q * block_k / 2**20)  # tiles of 4 MB leave the cache
        return count * (block_q * block_k + 4096) * rate * too_large

    candidates = []
    for block_q, block_k, rate in BLOCKS:
        block_q, block_k = _even_block(T, block_q), _even_block(S, block_k)
        rows, stands_for = _some_rows(-(-T // block_q))
        visited = (mask.blocks(T, S, block_q, block_k, rows)[0].sum(1) * stands_for).sum()
        candidates.append((cost(visited, block_q, block_k, rate), "loops", (block_q, block_k)))
    best = min(candidates)
    for block_q, rate in STRIPS:
        block_q = _even_block(T, block_q)
        count = -(-T // block_q)
        # a strip is as wide as the widest row asks: some rows say whether all are worth a look
        for rows in (_some_rows(count)[0], slice(None)):
            _, width = _strips.strips(mask, T, S, block_q, rows)
            alone = ALONE_RATE if B * N * block_q * width < ALONE else 1.0
            candidate = cost(count, block_q, width, rate * alone), "strips", (block_q, width)
            if candidate >= best:
                break
        else:
            best = candidate
    return best[1:]


_cached_choice = functools.lru_cache(maxsize=256)(_choice)


def _some_rows(count: int) -> tuple[Int[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Which blocks of queries are looked at to estimate what all of them visit, and how many each
    stands for: those at the ends, where global tokens are, for themselves."""
    if count <= 80:
        return np.arange(count), np.ones(count)
    between = np.linspace(8, count - 9, 64).round().astype(int)
    each = np.full(64, (count - 16) / 64)
    return np.r_[:8, between, count - 8 : count], np.r_[np.ones(8), each, np.ones(8)]


def visited_scores(mask: Mask, T: int, S: int, N: int, block=None) -> int:
    """How many scores are computed for a mask: those of all visited blocks."""
    if 0 in (T, S):
        return 0
    form = "loops"
    if block is None:
        form, block = choose(mask, T, S, N)
    block_q, block_k = block if isinstance(block, tuple) else (block, block)
    if form == "short":
        widths = [stop - start for start, stop, _ in _short.ranges(mask, T, S, block_q)]
        return block_q * int(sum(widths))
    if form == "strips":  # every block of queries meets a strip of keys
        return -(-T // block_q) * block_q * block_k
    if form == "gathered":
        return _gathered.visited(mask, T, S, block_q, block_k)
    return int(mask.blocks(T, S, block_q, block_k)[0].sum()) * block_q * block_k


def _even_block(length: int, most: int) -> int:
    """The block that cuts `length` into equal parts of at most `most`, a multiple of 8."""
    parts = -(-length // most)
    return (-(-length // parts) + 7) // 8 * 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(tiling, form, q, k, v, mask, bias, dropout):
    return _forward(tiling, form, q, k, v, mask, bias, dropout)[0]


def _forward(tiling, form, q, k, v, mask, bias, dropout):
    t = tiling
    run, _ = FORMS[form]

    def tile(_, n):
        rest = t.take(mask, n), _rows(t, bias, n), t.take(dropout, n)
        return (), run(t, *t.take((q, k, v), n), *rest)

    out, top, total = map(t.merge, _each_tile(t, form, tile, ())[1])
    lse = jnp.where(total == 0, -jnp.inf, top / LOG2E + jnp.log(total))
    return (out, lse.mT), (q, k, v, mask, bias, dropout, out, top, total)


def _each_tile(t, form, tile, carry):
    if form == "gathered" and t.count == 1:  # no loop around what has none
        carry, made = tile(carry, 0)
        return carry, jax.tree.map(lambda x: x[None], made)
    return lax.scan(tile, carry, jnp.arange(t.count))


def _forward_tile(t, q, k, v, mask, bias, dropout):
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


def _backward(tiling, form, saved, cotangents):
    t, ((q, k, v, mask, bias, dropout, *rows), learned) = tiling, saved
    dtype = q.dtype
    symbolic = jax.custom_derivatives.SymbolicZero
    cotangents = [jnp.zeros(x.shape, x.dtype) if type(x) is symbolic else x for x in cotangents]
    # out of a plain sum come constants, of which XLA would compute all that follows while it
    # compiles: seconds, where running it takes a millisecond
    do, d_lse = lax.optimization_barrier(cotangents)
    cotangents = do, d_lse.mT
    if learned.bias and form == "gathered":  # a bias is told of its gradient tile by tile
        form, q = "loops", wide(q)
    _, run = FORMS[form]

    def tile(d_bias, n):
        rest = t.take(mask, n), _rows(t, bias, n), t.take(dropout, n), _rows(t, d_bias, n)
        dq, dk, dv, d_part = run(t, *t.take((q, k, v, *rows, *cotangents), n), *rest)
        if learned.bias:
            d_bias = d_bias.with_rows(d_part, n * t.rows)
        return d_bias, (dq.astype(dtype), dk.astype(k.dtype), dv.astype(v.dtype))

    zero_bias = jax.tree.map(jnp.zeros_like, bias) if learned.bias else None
    d_bias, grads = _each_tile(t, form, tile, zero_bias)
    untouched = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (mask, dropout))
    return *map(t.merge, grads), untouched[0], d_bias, untouched[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Learned:
    """Whether anybody asks for the gradient of the bias."""

    bias: bool = dataclasses.field(metadata={"static": True})


def _saving_forward(tiling, form, *arguments):
    learned = any(x.perturbed for x in jax.tree.leaves(arguments[4]))
    result, saved = _forward(tiling, form, *jax.tree.map(lambda x: x.value, arguments))
    return result, (saved, _Learned(learned))


# told which arguments are differentiated: a bias that is given costs no gradient
_attend.defvjp(_saving_forward, _backward, symbolic_zeros=True)


def _backward_tile(t, q, k, v, out, top, total, do, d_lse, mask, bias, dropout, d_bias):
    visit = _visited(t, mask)
    (full_at, full_n), (part_at, part_n) = (_lists(x.T) for x in visit)
    drop = words(t, dropout)
    q, k, v = coming_back(t, q, k, v, total, do, d_lse)
    qs = t.to_blocks(q, t.block_q)
    # do . out of each row (Dao et al. 2022)
    deltas = t.rows_to_blocks((isolate(out)[0] * isolate(do)[0]).sum(-1).mT)
    dos, tops, d_lses = going_back_in_blocks(t, top, total, do, d_lse)
    shares = inverse(t.rows_to_blocks(total, 1.0))
    # weights are not divided by their sum: instead of them, all that they meet is
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


FORMS = {
    "short": (_short.forward, _short.backward),
    "strips": (_strips.forward, _strips.backward),
    "loops": (_forward_tile, _backward_tile),
    "gathered": (_gathered.forward, _gathered.backward),
}


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


def _rows(t: Tiling, bias: Bias | None, n) -> Bias | None:
    return None if bias is None else bias.rows(n * t.rows, t.rows)
