"""Cells of 2^level tokens, blocks of cells, and what decoding keeps of them: for `hierarchical`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._core import dots, masked_softmax, mix, softmax_part
from attn._tokens import clean, to_heads


def levels(length: int, block: int) -> int:
    """How many levels join all pairs of `length` tokens."""
    return max(1, ((length - 1) // block).bit_length())


def not_nearer(rows: int, cells: int, level: int) -> Bool[np.ndarray, "rows cells"]:
    """Which cells of the block to the left a row sees at this level: at level 0 all, else what the
    level below has not joined, where the halves that touch were neighbours."""
    late, early = np.arange(rows) >= rows // 2, np.arange(cells) < cells // 2
    return (late[:, None] | early) if level else np.ones((rows, cells), bool)


def halved(sums, n: int):
    """Sums over cells twice as long, along axis n."""

    def half(x):
        x = filled(x, n, -(-x.shape[n] // 2) * 2)
        return x.reshape(*x.shape[:n], -1, 2, *x.shape[n + 1 :]).sum(n + 1)

    return jax.tree.map(half, sums)


def filled(x, n: int, length: int):
    """x with axis n cut or filled up with 0 to `length`."""
    x = lax.slice_in_dim(x, 0, min(length, x.shape[n]), axis=n)
    return jnp.pad(x, [(0, 0)] * n + [(0, length - x.shape[n])] + [(0, 0)] * (x.ndim - n - 1))


def mean(total: Float[Array, "*B C N H"], count: Float[Array, "*B C 1"]):
    return total / jnp.maximum(count, 1)[..., None]


def part(rows, tokens, shown: dict[int, np.ndarray], size: int, count: int, cells=None):
    """The part of softmax over the blocks of cells at each distance of `shown`, [size, cells]:
    output [*B, R, N, D] and log-sum-exp [*B, R, N] of `count` blocks of `size` rows."""
    n = rows.ndim - 3

    def blocks(x, size):
        x = filled(x, n, count * size)
        return x.reshape(*x.shape[:n], count, size, *x.shape[n + 1 :])

    def beside(x):
        x = jnp.pad(x, [(0, 0)] * n + [(1, 1)] + [(0, 0)] * (x.ndim - n - 1))
        at = [lax.slice_in_dim(x, 1 + d, 1 + d + count, axis=n) for d in shown]
        return jnp.concatenate(at, axis=n + 1)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def attend(rows, tokens):
        k, v, counts = (beside(blocks(x, cells or size)) for x in tokens)
        there = counts[..., 0][..., None, None, :]  # [*B, P, 1, 1, C]
        seen = np.concatenate(list(shown.values()), axis=1) & (there > 0)
        # a cell counts as often as it has tokens
        s = dots(blocks(rows, size), mean(k, counts)) + jnp.log(jnp.maximum(there, 1))
        return softmax_part(s, seen, mean(v, counts))

    flat = lambda x: x.reshape(*x.shape[:n], -1, *x.shape[n + 2 :])
    back = lambda x: lax.slice_in_dim(flat(x), 0, rows.shape[n], axis=n)
    return jax.tree.map(back, attend(rows, tokens))


def over_cells(x: Float[Array, "*B S K H"], there: Bool[Array, "*B S"], level: int):
    """Each token's mean over the tokens that are there in its cell."""
    n, S = x.ndim - 3, x.shape[-3]
    sums = (x, there[..., None].astype(x.dtype))
    for _ in range(level):
        sums = halved(sums, n)
    return jnp.take(mean(*sums), np.arange(S) >> level, axis=n)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cells:
    """What decoding keeps: of each level the last 2 `block` cells, cell c at c mod 2 `block`."""

    k: Float[Array, "*B L C K H"]  # sums over each cell
    v: Float[Array, "*B L C K D"]
    poison: Float[Array, "*B K"]  # NaN if any key or value was not finite, else 0
    length: Int[Array, ""]


def empty(batch, num_kv_heads, head_dim, value_dim, kept: int, block: int, dtype) -> Cells:
    """Room for `kept` levels: kept 2 block K (H + D) numbers a batch row, at least float32."""
    dtype = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    zeros = lambda w: jnp.zeros((*batch, kept, 2 * block, num_kv_heads, w), dtype)
    poison = jnp.zeros((*batch, num_kv_heads), dtype)
    return Cells(zeros(head_dim), zeros(value_dim), poison, jnp.int32(0))


def fill(k, v, kept: int, block: int) -> Cells:
    """What is kept after T tokens at once."""
    *batch, T, K, H = k.shape
    state = empty(tuple(batch), K, H, v.shape[-1], kept, block, k.dtype)
    n, everywhere = len(batch), jnp.ones((*batch, T), bool)
    (k, k_poison), (v, v_poison) = clean(k, everywhere), clean(v, everywhere)
    sums, cells = (k, v), (state.k, state.v)
    for level in range(kept):
        sums = halved(sums, n) if level else sums
        count = sums[0].shape[n]
        last = np.arange(max(0, count - 2 * block), count)
        at = (slice(None),) * n + (level, last % (2 * block))
        put = lambda x, new, at=at, last=last: x.at[at].set(jnp.take(new, last, axis=n))
        cells = jax.tree.map(put, cells, sums)
    return Cells(*cells, (k_poison + v_poison).sum(-2), jnp.int32(T))


def step(state: Cells, q, k, v) -> tuple[Cells, Float[Array, "*B 1 N D"]]:
    """Add one token to its cell of each level and attend to what is kept, in float32.

    Raises ValueError unless q, k and v are one token in the shape the state was made for.
    """
    *batch, L, C, K, H = state.k.shape
    for name, x, heads, width in (
        ("q", q, q.shape[-2], H),
        ("k", k, K, H),
        ("v", v, K, state.v.shape[-1]),
    ):
        if list(x.shape) != [*batch, 1, heads, width]:
            want = [*batch, 1, heads, width]
            raise ValueError(f"{name}: expected one token {want}, got {list(x.shape)}")
    once = jnp.ones((*batch, 1), bool)
    (query, q_poison), (k, k_poison), (v, v_poison) = (clean(x, once) for x in (q, k, v))
    t, level, slot = state.length, jnp.arange(L)[:, None], jnp.arange(C)
    now = t >> level  # [L, 1], the cell of each level in which the token is
    here = slot == now % C
    starts = here & (t % (1 << level) == 0)

    def put(x, new):
        old = jnp.where(starts[..., None, None], 0, x)
        return old + jnp.where(here[..., None, None], new[..., None, :, :], 0).astype(x.dtype)

    poison = state.poison + (k_poison + v_poison)[..., 0, :].astype(state.poison.dtype)
    state = Cells(put(state.k, k), put(state.v, v), poison, t + 1)
    w = jnp.float32(1 << np.arange(L)[:, None])
    cell, block = now - (now - slot) % C, C // 2  # which cell each slot holds
    late, early = now % block >= block // 2, cell % block < block // 2
    afar = (cell // block == now // block - 1) & (late | early)
    near = cell // block >= now // block - 1
    seen = (cell >= 0) & jnp.where(level == 0, near, afar)
    w = w.astype(query.dtype)
    flat = lambda x: (x / w[..., None, None]).reshape(*batch, L * C, *x.shape[-2:])
    s = dots(query * H**-0.5, flat(state.k).astype(query.dtype))
    s = s + jnp.broadcast_to(jnp.log(w), (L, C)).reshape(-1)
    out = mix(masked_softmax(s, seen.reshape(-1)[None, None]), flat(state.v).astype(query.dtype))
    poison = to_heads(state.poison, q.shape[-2])[..., None, :].astype(q_poison.dtype) + q_poison
    # past its last level it has not kept what the definition sees, and says so
    poison = jnp.where(t < block << L, poison, jnp.nan)
    return state, (out + poison[..., None]).astype(q.dtype)
