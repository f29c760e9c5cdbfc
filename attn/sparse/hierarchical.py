"""Hierarchical attention (H-Transformer-1D, Zhu & Soricut 2021, arXiv:2107.11906): coarser afar."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._core import (
    attend_materialized,
    check_count,
    check_qkv,
    merged,
    refuse_rest,
    scores,
    wide,
)
from attn._tokens import any_past, clean, matrix_of, seen_tokens, to_heads
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse import _cells
from attn.sparse._cells import filled, halved, levels, mean, not_nearer, over_cells, part

HONOURS = (Causal, Padding)


def hierarchical_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    block: int = 16,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(s) v with s_ij = mean(q of i's cell) . mean(k of j's cell) / sqrt(H).

    Cells of level l are runs of 2^l tokens, and `block` cells make a block. A pair is scored at the
    first level at which its blocks are the same or neighbours: by its own q and k where it is near,
    by means over cells that double with every doubling of the distance. Queries and keys count from
    0 alike; means are over the tokens that are there.

    Under `Causal` only keys are averaged, each query asks for itself: the mean of a cell of queries
    holds later ones, which the authors' causal form lets through. Then O(T block log T) time and
    memory, otherwise O(T block). A query that is not finite makes the rows of its coarsest cell NaN
    (under `Causal` its own). Honours `Causal` and `Padding` joined by `&`, else
    NotImplementedError. Raises ValueError for a `block` that is odd or below 2.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_even(block)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("hierarchical", rest, bias, HONOURS)
    (*batch, T, N, H), (S, D) = q.shape, (v.shape[-3], v.shape[-1])
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    # beyond this all keys are one cell; before -T nobody asks
    offset = 0 if causal is None else max(min(causal.offset, 2 * block * S), -T)
    if 0 in (*batch, T, S, T + offset):
        return jnp.zeros((*batch, T, N, D), q.dtype)
    (queries, q_poison), (keys, k_poison), (values, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    tokens = (keys, values, seen[..., None].astype(keys.dtype))
    spoilt = jnp.isnan(to_heads(k_poison + v_poison, N))
    if causal is None:
        out = _bidirectional(queries * H**-0.5, asks, tokens, block)
        q_poison = _of_coarsest_cell(q_poison, max(T, S), block)
        met, live = spoilt.any(-2, keepdims=True), seen.any(-1, keepdims=True)
    else:
        shifted = lambda x, by: lax.pad(x, jnp.zeros((), x.dtype), _before(x.ndim, by))
        out = shifted(_causal(shifted(queries * H**-0.5, offset), tokens, block), -offset)
        met = jnp.swapaxes(any_past(jnp.swapaxes(spoilt, -1, -2), T, offset), -1, -2)
        live = any_past(seen, T, offset)
    out = out + lax.stop_gradient(jnp.where(met, jnp.nan, q_poison))[..., None]
    return jnp.where((asks & live)[..., None, None], out, 0).astype(q.dtype)


def check_even(block: int) -> None:
    """Raise ValueError unless half a block is a whole number of cells."""
    check_count("block", block, least=2)
    if block % 2:
        raise ValueError(f"block: expected an even number of cells, got {block}")


def _bidirectional(q, asks, tokens, block):
    """Each level's rows are its cells of queries; coarse rows stand for all their tokens."""
    n = q.ndim - 3
    length = max(q.shape[n], tokens[0].shape[n])
    rows, parts = (q, asks[..., None].astype(q.dtype)), []
    middle = np.ones((block, block), bool)
    for level in range(levels(length, block)):
        left = not_nearer(block, block, level)
        shown = {-1: left, 0: middle, 1: left[::-1, ::-1]}
        if level:
            rows, tokens, _ = halved(rows, n), halved(tokens, n), shown.pop(0)
        count = -(-length // (block << level))
        parts.append(part(mean(*rows), tokens, shown, block, count))
    while len(parts) > 1:
        fine, coarse = parts[-2], parts.pop()
        twice = lambda x: jnp.repeat(x, 2, axis=n)[(slice(None),) * n + (slice(fine[1].shape[n]),)]
        parts[-1] = merged((fine, jax.tree.map(twice, coarse)))
    return parts[0][0]


def _causal(q, tokens, block):
    """Each level's rows are the queries themselves, the first at 0."""
    n = q.ndim - 3
    length, out = q.shape[n], None
    for level in range(levels(length, block)):
        size = block << level
        shown = {-1: not_nearer(size, block, level)}
        if level:
            tokens = halved(tokens, n)
        else:
            shown[0] = np.tri(block, dtype=bool)
        new = part(q, tokens, shown, size, -(-length // size), cells=block)
        out = new if out is None else merged((out, new))
    return out[0]


def _of_coarsest_cell(poison: Float[Array, "*B T N"], length: int, block: int):
    cell = 2 ** (levels(length, block) - 1)
    n, T = poison.ndim - 2, poison.shape[-2]
    x = filled(poison, n, -(-T // cell) * cell)
    x = x.reshape(*x.shape[:n], -1, cell, x.shape[-1]).sum(n + 1)
    return lax.slice_in_dim(jnp.repeat(x, cell, axis=n), 0, T, axis=n)


def _before(ndim: int, rows: int):
    """Padding of tokens by so many rows in front."""
    return [(0, 0, 0)] * (ndim - 3) + [(rows, 0, 0)] + [(0, 0, 0)] * 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hierarchical(Mechanism):
    """Softmax whose keys and queries are averaged over cells that grow with distance (Zhu &
    Soricut 2021); exact within a `block` and its neighbours."""

    honours: ClassVar = HONOURS
    block: int = 16

    def __post_init__(self):
        check_even(self.block)

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        return hierarchical_attention(q, k, v, block=self.block, mask=mask, bias=bias)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        (causal, padding), _ = mask.take(*HONOURS)
        (*batch, T, N, H), S = q.shape, k.shape[-3]
        asks, seen = seen_tokens(padding, tuple(batch), T, S)
        offset = 0 if causal is None else causal.offset
        i, j = jnp.arange(T)[:, None] + offset, jnp.arange(S)
        shown = asks[..., None] & seen[..., None, :]
        shown = shown if causal is None else shown & (j <= i)
        q, k = (jnp.where(x[..., None, None], wide(y), 0) for x, y in ((asks, q), (seen, k)))
        s = jnp.zeros((*batch, N, T, S), q.dtype)
        taken = jnp.zeros((T, S), bool)
        for level in range(levels(max(T + max(offset, 0), S), self.block)):
            joined = jnp.abs((i >> level) // self.block - (j >> level) // self.block) <= 1
            rows = q if causal is not None else over_cells(q, asks, level)
            at = scores(rows * H**-0.5, over_cells(k, seen, level))
            s = jnp.where(joined & ~taken, at, s)
            taken = taken | joined
        return attend_materialized(s, shown[..., None, :, :], wide(v))

    def weights(self, q, k, *, mask=FULL, bias=None):
        return matrix_of(lambda v: self(q, k, v, mask=mask, bias=bias), k)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        kept = levels(max_length, self.block)
        return _cells.empty(batch, num_kv_heads, head_dim, value_dim, kept, self.block, dtype)

    def prefill(self, q, k, v, *, max_length):
        state = _cells.fill(k, v, levels(max_length, self.block), self.block)
        return state, self(q, k, v, mask=Causal())

    def step(self, state, q, k, v):
        check_qkv(q, k, v, FULL)
        return _cells.step(state, q, k, v)

    def flops(self, T, S, N, K, H, D):
        length = max(T, S)
        at = lambda level: -(-length // (self.block << level)) * self.block * self.block
        cells = 3 * at(0) + sum(2 * at(level) for level in range(1, levels(length, self.block)))
        return 2 * cells * N * (H + D)

    @classmethod
    def examples(cls):
        return cls(block=4), cls(block=2), cls(block=16)
