"""Shared by attention over groups of tokens chosen by content: chunks and small softmaxes.

A selection is made in float32 whatever the dtype, without a gradient, from one row of tokens of one
key head, so that a definition in float64 selects the same.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from attn._axes import aligned
from attn._core import isolate, isolate_rows
from attn._tokens import own_tokens
from attn.masks import Padding


def head_rows(x: Shaped[Array, "*B L N W"], key_heads: int) -> Shaped[Array, "b K Lg W"]:
    """The tokens of each key head, those of its group's heads side by side at each position."""
    *batch, L, N, W = x.shape
    x = x.reshape(math.prod(batch), L, key_heads, N // key_heads, W)
    return jnp.moveaxis(x, 2, 1).reshape(math.prod(batch), key_heads, L * (N // key_heads), W)


def as_heads(x: Shaped[Array, "b K Lg W"], shape: tuple[int, ...]) -> Shaped[Array, "*B L N W"]:
    """The inverse of `head_rows`: x as [*B, L, N, W] for a `shape` of [*B, L, N, any width]."""
    *batch, L, N, _ = shape
    K, W = x.shape[1], x.shape[3]
    x = x.reshape(math.prod(batch), K, L, N // K, W)
    return jnp.moveaxis(x, 1, 2).reshape(*batch, L, N, W)


def in_rows(x: Bool[Array, "*B L"]) -> Bool[Array, "b L"]:
    """x with its batch axes merged."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def there(padding: Padding | None, batch: Sequence[int], T: int, S: int):
    """The `own_tokens` as [b, T] and [b, S]."""
    live, seen = own_tokens(padding, tuple(batch), T, S)
    return in_rows(live), in_rows(seen)


def selecting(x: Array) -> Float[Array, "..."]:
    """x as selections take it: float32, no gradient, 0 in a row that is not finite."""
    return lax.stop_gradient(isolate(x.astype(jnp.float32))[0])


def where_finite(
    x: Float[Array, "*B T N H"], learned: Float[Array, "K ..."]
) -> Float[Array, "*B T N H"]:
    """x, NaN in all heads of a key head for which `learned` holds what is not finite: its numbers
    choose tokens and reach no output."""
    fine = jnp.isfinite(learned).all(tuple(range(1, learned.ndim)))
    fine = jnp.repeat(fine, x.shape[-2] // len(learned))[:, None]
    return jnp.where(aligned(x, fine)[1], x, jnp.nan)


def chunks(
    group: Int[Array, " L"], at: Int[Array, " L"], counted: Bool[Array, " L"], size: int
) -> tuple[Int[Array, " L"], Int[Array, " L"], Int[Array, " L"], Int[Array, " L"]]:
    """Divide the counted items of each group, in the order of `at`, into chunks of `size`.

    Returns for each item (chunk, previous, following, rank): the chunk of the last counted item of
    its group up to itself, the one before that, the one after it, -1 where there is none; and how
    many counted items of its group are before it. Chunks are numbered in the order of their first
    items, so an item's number depends on no later item. Groups below 0 have no chunks.
    """
    L = len(group)
    index = jnp.arange(L, dtype=jnp.int32)
    g, _, order = lax.sort((group, at, index), num_keys=2)
    counts = counted[order].astype(jnp.int32)
    first = jnp.concatenate([jnp.ones(1, bool), g[1:] != g[:-1]])
    start = lax.cummax(jnp.where(first, index, 0))
    upto = jnp.cumsum(counts, dtype=jnp.int32)
    rank = (upto - counts) - (upto - counts)[start]
    opens = (counts > 0) & (rank % size == 0) & (g >= 0)
    # numbered in their own order, not in the sorted one
    number = jnp.zeros(L, jnp.int32).at[order].set(opens.astype(jnp.int32))
    number = (jnp.cumsum(number, dtype=jnp.int32) - 1)[order]
    look = lambda i, there: jnp.where(there, number[jnp.clip(i, 0, L - 1)], -1)
    last = lax.cummax(jnp.where(opens, index, -1))
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), last[:-1]])[jnp.maximum(last, 0)]
    after = lax.cummin(jnp.where(opens, index, L), reverse=True)
    found = (
        look(last, last >= start),
        look(before, (last >= start) & (before >= start)),
        look(after, (after < L) & (g[jnp.minimum(after, L - 1)] == g)),
        rank,
    )
    return tuple(jnp.zeros(L, jnp.int32).at[order].set(x) for x in found)


def most_chunks(length: int, groups: int, size: int) -> int:
    """The most chunks that `length` items of at most `groups` groups can make."""
    return (length + min(groups, length) * (size - 1)) // size


def table(chunk: Int[Array, " L"], rank: Int[Array, " L"], many: int, size: int):
    """The item at each place of `many` chunks, [many, size]; L where there is none."""
    L = len(chunk)
    place = jnp.where(chunk < 0, many * size, chunk * size + rank % size)
    empty = jnp.full(many * size, L, jnp.int32)
    return empty.at[place].set(jnp.arange(L, dtype=jnp.int32), mode="drop").reshape(many, size)


def pick(x: Array, index: Int[Array, "..."], fill=0) -> Array:
    """x[index] along the first axis, `fill` where there is no such item (a negative one too)."""
    index = jnp.where(index < 0, len(x), index)
    return jnp.take(x, index, axis=0, mode="fill", fill_value=fill)


def small_softmax(
    q: Float[Array, "*c m H"],
    k: Float[Array, "*c w H"],
    v: Float[Array, "*c w D"],
    seen: Bool[Array, "*c m w"],
    share: Float[Array, "*c #m w"] | None = None,
) -> tuple[Float[Array, "*c m D"], Float[Array, "*c m"]]:
    """Softmax of q . k over the visible keys times v, and its log-sum-exp; `share` multiplies exp.
    A row that sees nothing is 0, with -inf, and one whose scores overflow is NaN."""
    s, poison = isolate_rows(jnp.einsum("...mh,...wh->...mw", q, k), seen)
    top = jnp.max(jnp.where(seen, s, -jnp.inf), axis=-1, initial=-jnp.inf)
    top = lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
    e = jnp.where(seen, jnp.exp(jnp.where(seen, s - top[..., None], 0)), 0)
    e = e if share is None else e * share
    total = e.sum(-1)
    divisor = jnp.where(total == 0, 1, total)
    w = jnp.where(seen, e / divisor[..., None], 0)  # from gradients too, as `isolated_softmax`
    out = jnp.einsum("...mw,...wd->...md", w, v)
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(divisor))
    return out + poison, lse + poison[..., 0]


def padded(n: int, most: int) -> int:
    """How many items `map_in_blocks` computes for n of them."""
    return n if n <= most else -(-n // most) * most


def map_in_blocks(attend, arrays: tuple[Array, ...], most: int):
    """attend(*arrays), `most` of the first axis at a time; a backward pass makes each anew.

    All blocks run the same code, so that where an item stands changes no bit of its result.
    """
    n = len(arrays[0])
    if n <= most:
        return attend(*arrays)
    blocks = padded(n, most) // most
    split = lambda x: jnp.pad(x, [(0, blocks * most - n)] + [(0, 0)] * (x.ndim - 1)).reshape(
        blocks, most, *x.shape[1:]
    )
    done = lax.map(jax.checkpoint(lambda xs: attend(*xs)), jax.tree.map(split, arrays))
    return jax.tree.map(lambda x: x.reshape(blocks * most, *x.shape[2:])[:n], done)
