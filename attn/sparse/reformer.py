"""Reformer (Kitaev et al. 2020, arXiv:2001.04451): tokens of equal hash attend to each other.

Strictly causal, unlike the paper's sorted chunks, whose borders depend on the whole sequence: here
chunks are counted inside each bucket from its first token, so that whether i sees j depends on
tokens up to max(i, j) only.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn import _cache
from attn._arrays import check_floats
from attn._axes import aligned, conjunction
from attn._cached import Cached
from attn._core import attend_materialized, isolate, masked_softmax, scaled, scores
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state, refuse_rest
from attn._merge import merged
from attn._settings import check_count, check_flag, check_flags
from attn._tokens import no_output
from attn._wide import largest, wide
from attn.masks import FULL, Causal, Mask, Padding
from attn.sparse import _buckets
from attn.sparse._hashed import Hashed, by_round

HONOURS = (Causal, Padding)
CELLS = 2**20  # scores of all key heads that are made at once
WHOLE = 512  # up to this length all scores are made, if chunks hold more: some are all but empty


@auto_inside
def reformer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    rotations: Float[Array, "K R H half"],
    chunk: int = 64,
    shared_qk: bool = False,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H)) v over pairs that are near within one bucket in at least one round.

    A round hashes by h(x) = argmax([x R; -x R]), R from the `rotations` of a key head, the same for
    q and k. The visible keys of a bucket, in order, form chunks of `chunk`. Query i stands at key
    i + offset (of `Causal`; else 0): it sees the chunk of the last key of its bucket up to there,
    and the chunk before; if there is no such key, the bucket's first chunk, which `Causal` hides. A
    pair counts once, however many rounds show it. (That and the one bucket are the paper's, in its
    appendix; in the authors' code, trax, and Hugging Face's a query sees all of its chunk and of
    the one before, whatever their buckets, and a pair counts once in each round that shows it.)

    With `shared_qk`, for which the caller passes one array as q and k, keys are scaled to a root
    mean square of 1 (logits are q . k / |k|, as in the authors' code) and a token attends to itself
    only if it sees nothing else. Without it, a query that sees nothing has output 0.

    O(T rounds (chunk + buckets)) time besides a sort and, to count in how many rounds each pair is
    shown, T rounds^2 chunk comparisons; up to 512 tokens O(T^2) where that is less. Memory linear
    in T. Honours `Causal` and `Padding`, else NotImplementedError. ValueError for rotations of a
    wrong shape and a chunk below 1, TypeError for a `shared_qk` that is not True or False.
    """
    check_flag("shared_qk", shared_qk)
    causal, padding = _checked(q, k, v, mask, bias, rotations, chunk)
    if 0 in (*q.shape[:-2], k.shape[-3], v.shape[-1]):
        return no_output(q, v)
    if _made(q.shape[-3], k.shape[-3], q.shape[-2], rotations.shape, chunk)[1]:
        s, seen = _dense(q, k, causal, padding, rotations, chunk, shared_qk)
        return attend_materialized(s, seen, wide(v)).astype(jnp.result_type(q))
    return _attend(chunk, shared_qk, q, k, v, causal, padding, rotations)


@functools.partial(jax.jit, static_argnums=(0, 1))  # for calls outside of jit
def _attend(chunk, shared_qk, q, k, v, causal, padding, rotations) -> Float[Array, "*B T N D"]:
    *batch, T, N, _ = q.shape
    S, K = k.shape[-3:-1]
    q = _buckets.where_finite(q, rotations)
    pairs = Hashed.of(q, k, causal, padding, rotations, chunk, shared_qk)
    dtype = jnp.result_type(q)
    (q, q_poison), (k, poison) = isolate(scaled(q, None)), isolate(_keys(k, shared_qk))
    v, v_poison = isolate(wide(v))
    rows = [_buckets.head_rows(x, K) for x in (q, k, v)]
    lost = [_buckets.head_rows(jnp.isnan(x)[..., None], K) for x in (q_poison, poison + v_poison)]
    head = functools.partial(
        _head,
        hidden=pairs.hidden,
        buckets=2 * rotations.shape[-1],
        size=min(chunk, S),
        cells=CELLS // (len(rows[0]) * K),
    )
    over_heads = jax.vmap(head, in_axes=(0,) * 6 + (None,))
    out = jax.vmap(over_heads)(*rows, *(x[..., 0] for x in lost), pairs.codes, pairs.alone)
    return _buckets.as_heads(out, (*batch, T, N, 0)).astype(dtype)


def _head(q, k, v, q_lost, lost, codes, alone, *, hidden, buckets, size, cells):
    """Attention of the query rows [Tg, H] of one key head, round by round."""
    Tg, S = len(q), len(k)
    key_chunks, query_chunks = _most_chunks(Tg, S, buckets, size)

    def one_round(codes):
        key_chunk, key_rank, last, before = codes
        # queries of one chunk of keys stand together, in chunks of their own
        everyone = jnp.arange(Tg, dtype=jnp.int32)
        place, _, _, rank = _buckets.chunks(last, everyone, everyone >= 0, size)
        rows = _buckets.table(place, rank, query_chunks, size)
        keys = _buckets.table(key_chunk, key_rank, key_chunks, size)
        window = [_buckets.pick(keys, _buckets.pick(x, rows[:, 0], -1), S) for x in (before, last)]
        window = jnp.concatenate(window, axis=1)  # [query_chunks, 2 size]
        columns = [_buckets.pick(x, window) for x in (k, v, lost)]
        arrays = (rows, window, _buckets.pick(q, rows), *columns)
        out, lse, bad = _buckets.map_in_blocks(attend, arrays, _at_once(cells, size))
        slot = jnp.where(place < 0, -1, place * size + rank % size)
        back = lambda x, fill: _buckets.pick(x.reshape(-1, *x.shape[2:]), slot, fill)
        return back(out, 0), back(lse, -jnp.inf), back(bad, False)

    def attend(rows, window, q, k, v, lost):
        i, j = rows[:, :, None], window[:, None, :]
        seen = (i < Tg) & (j < S) & ~hidden(i, j)
        # how many rounds show each pair: N_ij of the paper's appendix
        times = jnp.sum(jnp.stack(by_round(codes, rows, window)), 0, dtype=jnp.int32)
        share = 1 / jnp.maximum(times, 1).astype(q.dtype)
        bad = (seen & lost[:, None, :]).any(-1)
        return *_buckets.small_softmax(q, k, v, seen, share), bad

    outs, lses, bad = lax.map(jax.checkpoint(one_round), codes)
    out, lse = merged(list(zip(outs, lses)))
    alone = jnp.where(lse == -jnp.inf, alone, S)
    out = jnp.where((alone < S)[:, None], _buckets.pick(v, alone), out)
    sees = (lse > -jnp.inf) | (alone < S)
    bad = bad.any(0) | _buckets.pick(lost, alone, False) | (q_lost & sees)
    return out + jnp.where(bad, jnp.nan, 0).astype(out.dtype)[:, None]


def _most_chunks(Tg: int, S: int, buckets: int, size: int) -> tuple[int, int]:
    """The most chunks that the keys can make, and that the queries standing at them can."""
    keys = _buckets.most_chunks(S, buckets, size)
    return keys, _buckets.most_chunks(Tg, keys, size)


def _made(T: int, S: int, N: int, rotations: tuple[int, ...], chunk: int) -> tuple[int, bool]:
    """How many scores a key head makes: those of its chunks in all rounds, or, and then True, of
    all pairs of a short text, if that is fewer."""
    K, rounds, _, half = rotations
    size = min(chunk, S)
    chunks = _most_chunks(T * N // K, S, 2 * half, size)[1]
    chunks = _buckets.padded(chunks, _at_once(CELLS // K, size))
    pairs, in_chunks = T * N // K * S, rounds * chunks * 2 * size * size
    whole = pairs <= in_chunks and max(T, S) <= WHOLE
    return (pairs, True) if whole else (in_chunks, False)


def _at_once(cells: int, size: int) -> int:
    """How many chunks of queries are processed at once."""
    return max(1, cells // (2 * size * size))


def _checked(q, k, v, mask, bias, rotations, chunk):
    """The mask's `Causal` and `Padding`, None where it has none."""
    check_count("chunk", chunk)
    mask, bias = check_qkv(q, k, v, mask, bias)
    taken, rest = mask.take(*HONOURS)
    refuse_rest("reformer", rest, bias, HONOURS)
    K, H = k.shape[-2:]
    check_floats(rotations=rotations)
    shape = rotations.shape
    if len(shape) != 4 or (shape[0], shape[2]) != (K, H) or 0 in shape:
        raise ValueError(
            f"rotations: expected [{K} key heads, rounds, width {H}, buckets / 2], as `init` makes "
            f"them, got {list(shape)}"
        )
    return taken


def _keys(k, shared_qk):
    """The keys as scores take them: with `shared_qk`, of a root mean square of 1."""
    if not shared_qk:
        return wide(k)
    # what is not finite is taken out before and put back after: its gradient would be NaN
    k, poison = isolate(wide(k))
    top = largest(k)  # as parts of it, whose squares neither overflow nor vanish
    k = k / jnp.where(top == 0, 1, top)
    square = (k * k).mean(-1, keepdims=True)
    return k * lax.rsqrt(jnp.where(top == 0, 1, square)) + poison[..., None]


@functools.partial(jax.jit, static_argnums=(5, 6))  # for calls outside of jit
def _dense(q, k, causal, padding, rotations, chunk, shared_qk, at=None):
    """The full matrix of scores [*B, N, T, S], and which of them are visible."""
    *batch, T, N, _ = q.shape
    S, K = k.shape[-3:-1]
    q = _buckets.where_finite(q, rotations)
    s = scores(scaled(q, None), _keys(k, shared_qk))
    if s.size == 0:
        return s, s > 0
    pairs = Hashed.of(q, k, causal, padding, rotations, chunk, shared_qk, at)
    row, j = jnp.arange(T * N // K), jnp.arange(S)
    near = lambda codes: jnp.stack(by_round(codes, row, j)).any(0)
    shown = ~pairs.hidden(row[:, None], j[None])
    seen = conjunction(jax.vmap(jax.vmap(near))(pairs.codes), shown)
    own = jnp.equal(*aligned(pairs.alone[:, None, :, None], j))  # [b, 1, Tg, S]
    seen = seen | (own & ~seen.any(-1, keepdims=True))
    seen = jnp.moveaxis(_buckets.as_heads(seen, (*batch, T, N, 0)), -3, -2)
    return s, seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reformer(Cached):
    """Softmax among tokens that hash alike, by chunks, in several rounds (Kitaev et al. 2020).

    With `shared_qk` a layer projects one array for q and k, as the paper does.
    """

    honours: ClassVar = HONOURS
    buckets: int = 64
    rounds: int = 4
    chunk: int = 64
    shared_qk: bool = False

    def __post_init__(self):
        for name in ("buckets", "rounds", "chunk"):
            check_count(name, getattr(self, name))
        if self.buckets % 2:
            raise ValueError(f"buckets: expected an even number ([xR; -xR]), got {self.buckets}")
        check_flags(self)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, rotations) -> Array:
        self.check_learned(q, k, v, rotations=rotations)
        options = {"chunk": self.chunk, "shared_qk": self.shared_qk, "rotations": rotations}
        return reformer_attention(q, k, v, mask=mask, bias=bias, **options)

    def reference(self, q, k, v, *, mask=FULL, bias=None, rotations):
        self.check_learned(q, k, v, rotations=rotations)
        terms = _checked(q, k, v, mask, bias, rotations, self.chunk)
        s, seen = _dense(q, k, *terms, rotations, self.chunk, self.shared_qk)
        return attend_materialized(s, seen, v)

    def weights(self, q, k, *, mask=FULL, bias=None, rotations):
        self.check_learned(q, k, k, rotations=rotations)
        terms = _checked(q, k, k, mask, bias, rotations, self.chunk)
        return masked_softmax(*_dense(q, k, *terms, rotations, self.chunk, self.shared_qk))

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        shape = (num_kv_heads, self.rounds, head_dim, self.buckets // 2)
        return {"rotations": jax.random.normal(key, shape, jnp.float32)}

    def flops(self, T, S, N, K, H, D):
        if 0 in (T, S):
            return 0
        hashing = self.rounds * H * self.buckets // 2 * (T * N + S * K)
        sizes = K, self.rounds, H, self.buckets // 2
        made, _ = _made(T, S, N, sizes, self.chunk)
        return 2 * (hashing + K * made * (H + D))

    def step(self, state, q, k, v, *, rotations):
        check_state(state, _cache.Cache, q)
        self.check_learned(q, k, v, rotations=rotations)
        _cache.check_one_token(q)
        at, cache = jnp.broadcast_to(state.length, 1), _cache.append(state, k, v)
        _, values, filled = _cache.tokens(cache)
        token_first = lambda x: jnp.swapaxes(wide(x), -3, -2)
        # what is not finite is NaN in the values: a key hashes as it did, whatever its value
        keys, values = token_first(cache.k), wide(values) + token_first(cache.poison[..., None])
        terms = _checked(wide(q), keys, values, filled & Causal(), None, rotations, self.chunk)
        s, seen = _dense(wide(q), keys, *terms, rotations, self.chunk, self.shared_qk, at)
        out = _cache.unless_forgotten(cache, attend_materialized(s, seen, values))
        return cache, out.astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return (
            cls(buckets=4, rounds=2, chunk=3),
            cls(buckets=2, rounds=1, chunk=4, shared_qk=True),
            cls(shared_qk=True),
        )
