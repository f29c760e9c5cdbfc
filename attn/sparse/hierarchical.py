"""Hierarchical attention (H-Transformer-1D, Zhu & Soricut 2021, arXiv:2107.11906): coarser afar."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._axes import aligned, conjunction
from attn._core import attend_materialized, scores
from attn._explicit import auto_inside
from attn._inputs import check_kept, check_qkv, check_state, refuse_rest
from attn._merge import merged
from attn._prompt import check_prompt
from attn._settings import check_count, check_room_for
from attn._tokens import any_past, clean, matrix_of, no_output, own_tokens, to_heads
from attn._wide import float_dtype, wide
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse import _cells
from attn.sparse._cells import first, halved, levels, not_nearer, over_cells, part

HONOURS = (Causal, Padding)


@auto_inside
def hierarchical_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    block_size: int = 16,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(s) v with s_ij = q of i's cell . mean(k of j's cell) / sqrt(H).

    Cells of level l are runs of 2^l tokens; `block_size` b of them make a block. A pair is scored
    at the lowest level at which its blocks are the same or neighbours: by its own q and k if it is
    near, else by those of cells that double with every doubling of the distance. The q of a cell is
    its mean or, under `Causal`, its first, as in the authors' decoder: a mean would contain later
    queries. (Their code also learns a bias for each distance between cells, and averages the means
    of two half cells alike, however many of their tokens are padded.) Both sequences count from 0
    (queries from the offset of `Causal`); padding is in no cell: neither hidden keys nor, if T = S
    and `Padding` does not say which queries exist, queries at their positions, whose output is 0.

    O((T + S) b) time and memory. A query that is not finite makes NaN all outputs whose scores use
    it. Honours `Causal` and `Padding` joined by `&`, else NotImplementedError. Raises ValueError
    for a `block_size` that is odd or below 2, and for `Causal` with an offset above S + T.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_even(block_size)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("hierarchical", rest, bias, HONOURS)
    (*batch, T, _, _), (S, D) = q.shape, (v.shape[-3], v.shape[-1])
    asks, seen = own_tokens(padding, tuple(batch), T, S)
    offset = _offset(causal, T, S)
    if 0 in (*batch, T, S, D, T + offset):
        return no_output(q, v)
    return _attend(block_size, causal is not None, offset, q, k, v, asks, seen)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # for calls outside of jit
def _attend(block_size, causal, offset, q, k, v, asks, seen):
    """For a query 0 that stands at `offset`, and the tokens that exist, [*B, T] and [*B, S]."""
    (T, N, H), n = q.shape[-3:], q.ndim - 3
    (queries, q_poison), (keys, k_poison), (values, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    count = lambda there: there[..., None].astype(keys.dtype)
    asking = queries * H**-0.5, count(asks), q_poison
    rows = tuple(_moved(x, offset, n) for x in asking)
    out, lse = _by_levels(rows, (keys, values, count(seen)), block_size, causal)
    out, lse = (_moved(x, -offset, n) for x in (out, lse))
    spoilt = jnp.isnan(to_heads(k_poison + v_poison, N))
    if not causal:
        met, live = spoilt.any(-2, keepdims=True), seen.any(-1, keepdims=True)
    else:
        met = jnp.swapaxes(any_past(jnp.swapaxes(spoilt, -1, -2), T, offset), -1, -2)
        live = any_past(seen, T, offset)
    out = out + lax.stop_gradient(jnp.where(met | jnp.isnan(lse), jnp.nan, 0))[..., None]
    return jnp.where((asks & live)[..., None, None], out, 0).astype(jnp.result_type(q))


def _offset(causal: Causal | None, T: int, S: int) -> int:
    """The position of query 0, no less than -T, where already no query sees a key."""
    if causal is not None and causal.offset > S + T:
        raise ValueError(
            f"mask: hierarchical expected Causal with an offset of at most S + T = {S + T}, which "
            f"is where it counts queries from, got {causal.offset}"
        )
    return 0 if causal is None else max(causal.offset, -T)


def _moved(x, by: int, n: int):
    """x shifted along axis n to start `by` later, filled with 0, or earlier if negative."""
    return lax.pad(
        x, jnp.zeros((), jnp.result_type(x)), [(by * (i == n), 0, 0) for i in range(x.ndim)]
    )


def check_even(block_size: int) -> None:
    """Raise ValueError unless half a block is a whole number of cells."""
    check_count("block_size", block_size, least=2)
    if block_size % 2:
        raise ValueError(f"block_size: expected an even number of cells, got {block_size}")


def _by_levels(rows, tokens, block, causal):
    """The output and log-sum-exp of rows (q, how many, poison) over tokens (k, v, how many)."""
    n = tokens[0].ndim - 3
    parts, whole = [], np.ones((block, block), bool)
    for level in range(levels(max(rows[0].shape[n], tokens[0].shape[n]), block)):
        if level:
            tokens = halved(tokens, n)
            rows = first(rows, n) if causal else halved(rows, n)
        left = not_nearer(block, level)
        shown = {-1: left}
        shown |= {} if level else {0: np.tri(block, dtype=bool) if causal else whole}
        shown |= {} if causal else {1: left[::-1, ::-1]}
        parts.append(part(rows, tokens, shown, block, 1 << level))
    while len(parts) > 1:
        # a coarse row stands for both of the next finer level
        fine, coarse = parts[-2], parts.pop()
        twice = lambda x: lax.slice_in_dim(jnp.repeat(x, 2, axis=n), 0, fine[1].shape[n], axis=n)
        parts[-1] = merged((fine, jax.tree.map(twice, coarse)))
    return parts[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hierarchical(Mechanism):
    """Softmax whose keys and queries are averaged over cells that grow with distance (Zhu &
    Soricut 2021); exact within a block of `block_size` and its neighbours."""

    honours: ClassVar = HONOURS
    block_size: int = 16

    def __post_init__(self):
        check_even(self.block_size)

    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        return hierarchical_attention(q, k, v, block_size=self.block_size, mask=mask, bias=bias)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*HONOURS)
        refuse_rest("hierarchical", rest, bias, HONOURS)
        (*batch, T, N, H), S, n = q.shape, k.shape[-3], q.ndim - 3
        asks, seen = own_tokens(padding, tuple(batch), T, S)
        offset = _offset(causal, T, S)
        q, asks = _moved(q, offset, n), _moved(asks, offset, n)
        tokens = lambda x, there: (
            jnp.where(there[..., None, None], wide(x), 0),
            there[..., None].astype(wide(x).dtype),
            jnp.zeros(x.shape[:-1]),
        )
        rows, keys = tokens(q, asks), tokens(k, seen)
        i, j = jnp.arange(T + offset)[:, None], jnp.arange(S)[None]
        s, taken = jnp.zeros((*batch, N, T + offset, S), rows[0].dtype), jnp.zeros(i.shape, bool)
        for level in range(levels(max(T + offset, S), self.block_size)):
            joined = jnp.abs((i >> level) // self.block_size - (j >> level) // self.block_size) <= 1
            asked = over_cells(rows, level, halved if causal is None else first)
            at = scores(asked * H**-0.5, over_cells(keys, level, halved))
            s, taken = jnp.where(*aligned(joined & ~taken, at, s)), taken | joined
        reached = j >= 0 if causal is None else j <= i
        shown = conjunction(asks[..., None], seen[..., None, :], reached)
        return _moved(attend_materialized(s, shown[..., None, :, :], wide(v)), -offset, n)

    def weights(self, q, k, *, mask=FULL, bias=None):
        return matrix_of(lambda q, k, v: self(q, k, v, mask=mask, bias=bias), q, k)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        check_room_for(batch, max_length, num_heads=num_heads, **sizes)
        heads = num_heads, num_kv_heads, head_dim, value_dim
        cells = levels(max_length, self.block_size), self.block_size
        return _cells.empty(batch, *heads, *cells, float_dtype(dtype))

    def prefill(self, q, k, v, *, max_length):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal())
        return _cells.fill(q, k, v, levels(max_length, self.block_size), self.block_size), out

    def step(self, state, q, k, v):
        check_state(state, _cells.Cells, q)
        check_kept(state.k.shape[-3], 2 * self.block_size, "cells of each level")
        check_qkv(q, k, v, FULL)
        return _cells.step(state, q, k, v)

    def flops(self, T, S, N, K, H, D):
        length, b = max(T, S), self.block_size
        at = lambda level: -(-length // (b << level)) * b * b
        cells = 3 * at(0) + sum(2 * at(level) for level in range(1, levels(length, b)))
        return 2 * cells * N * (H + D)

    @classmethod
    def examples(cls):
        return cls(block_size=4), cls(block_size=16)
