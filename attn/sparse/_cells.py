"""Cells of 2^level tokens, blocks of cells, and the decoding state made of them: `hierarchical`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._axes import aligned, conjunction
from attn._core import dots, masked_softmax, mix
from attn._merge import softmax_part
from attn._tokens import clean, filled, in_blocks, to_heads
from attn._wide import wide_dtype

# the queries of each cell: their sum or the first of them, how many that is, and NaN or 0
Rows = tuple[Float[Array, "*B R N H"], Float[Array, "*B R 1"], Float[Array, "*B R N"]]


def levels(length: int, block: int) -> int:
    """How many levels it takes to join all pairs of `length` tokens."""
    # int: settings may be NumPy's
    return max(1, int((length - 1) // block).bit_length())


def not_nearer(block: int, level: int) -> Bool[np.ndarray, "block block"]:
    """Which cells of the block to the left each row sees at this level: at level 0 all, else those
    that the level below has not joined, where the two halves that touch were neighbours."""
    late = np.arange(block) >= block // 2
    return (late[:, None] | ~late) if level else np.ones((block, block), bool)


def halved(sums, n: int):
    """Half the sums over cells twice as long, along axis n: finite sums stay finite."""
    return jax.tree.map(lambda x: (in_blocks(x, 2, n) / 2).sum(n + 1), sums)


def first(rows: Rows, n: int) -> tuple[Array, Array, Array]:
    """The first row that exists of each cell twice as long."""
    q, count, poison = (in_blocks(x, 2, n) for x in rows)
    left, right = ((slice(None),) * (n + 1) + (i,) for i in (0, 1))
    there = count[left] > 0
    choose = lambda x: jnp.where(
        there.reshape(*there.shape[: n + 1], *(1,) * (x.ndim - n - 2)), x[left], x[right]
    )
    return choose(q), jnp.maximum(count[left], count[right]), choose(poison)


def mean(total: Float[Array, "*B C N H"], count: Float[Array, "*B C 1"]):
    return total / jnp.where(count > 0, count, 1)[..., None]


def part(rows: Rows, tokens, shown: dict[int, np.ndarray], block: int, size: int):
    """The part of softmax over the blocks at each distance of `shown`, which maps it to the visible
    cells [block, block]: output [*B, R, N, D] and log-sum-exp [*B, R, N], NaN where a row that is
    NaN sees something. Sums over cells, and their counts of tokens, are divided by their `size`."""
    q, count, poison = rows
    n, length = q.ndim - 3, q.shape[-3]
    P = -(-max(length, tokens[0].shape[n]) // block)

    def blocks(x):
        x = filled(x, P * block, n)
        return x.reshape(*x.shape[:n], P, block, *x.shape[n + 1 :])

    def beside(x):
        x = jnp.pad(blocks(x), [(0, 0)] * n + [(1, 1)] + [(0, 0)] * (x.ndim - n))
        at = [lax.slice_in_dim(x, 1 + d, 1 + d + P, axis=n) for d in shown]
        return jnp.concatenate(at, axis=n + 1)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def attend(q, tokens):
        k, v, counts = map(beside, tokens)
        there = counts[..., 0][..., None, None, :]  # [*B, P, 1, 1, C]
        seen = conjunction(np.concatenate(list(shown.values()), axis=1), there > 0)
        # a cell counts as often as it has tokens
        s = dots(blocks(q), mean(k, counts)) + jnp.log(jnp.where(there > 0, size * there, 1))
        return softmax_part(s, seen, mean(v, counts))

    flat = lambda x: x.reshape(*x.shape[:n], -1, *x.shape[n + 2 :])
    back = lambda x: lax.slice_in_dim(flat(x), 0, length, axis=n)
    out, lse = map(back, attend(mean(q, count), tokens))
    return out, jnp.where(jnp.isnan(poison) & (lse > -jnp.inf), jnp.nan, lse)


def over_cells(rows: Rows, level: int, combine) -> Float[Array, "*B R N H"]:
    """The mean of a token's cell at this level, for each token."""
    n, length = rows[0].ndim - 3, rows[0].shape[-3]
    for _ in range(level):
        rows = combine(rows, n)
    return jnp.take(mean(*rows[:2]), np.arange(length) >> level, axis=n)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cells:
    """The state of decoding: of each level the last 2 `block` cells, cell c at c mod 2 `block`, and
    the first query of the current cell."""

    k: Float[Array, "*B L C K H"]  # sums over each cell, divided by its size in tokens
    v: Float[Array, "*B L C K D"]
    poison: Float[Array, "*B K"]  # NaN if any key or value was not finite, else 0
    q: Float[Array, "*B L N H"]
    q_poison: Float[Array, "*B L N"]
    length: Int[Array, ""]


def empty(batch, num_heads, num_kv_heads, head_dim, value_dim, kept: int, block: int, dtype):
    """An empty state of `kept` levels: kept (2 block K (H + D) + N H) numbers per batch row."""
    dtype = wide_dtype(dtype)
    zeros = lambda *tail: jnp.zeros((*batch, *tail), dtype)
    cells = lambda width: zeros(kept, 2 * block, num_kv_heads, width)
    asks = zeros(kept, num_heads, head_dim), zeros(kept, num_heads)
    return Cells(cells(head_dim), cells(value_dim), zeros(num_kv_heads), *asks, jnp.int32(0))


@functools.partial(jax.jit, static_argnums=(3, 4))  # for calls outside of jit
def fill(q, k, v, kept: int, block: int) -> Cells:
    """The state after T tokens at once."""
    *batch, T, K, H = k.shape
    state = empty(tuple(batch), q.shape[-2], K, H, v.shape[-1], kept, block, k.dtype)
    if T == 0:
        return state
    n, everywhere = len(batch), jnp.ones((*batch, T), bool)
    (q, q_poison), (k, k_poison), (v, v_poison) = (clean(x, everywhere) for x in (q, k, v))
    sums, cells = (k, v), (state.k, state.v)
    for level in range(kept):
        sums = halved(sums, n) if level else sums
        count = sums[0].shape[n]
        last = np.arange(max(0, count - 2 * block), count)
        at = (slice(None),) * n + (level, last % (2 * block))
        put = lambda x, new, at=at, last=last: x.at[at].set(jnp.take(new, last, axis=n))
        cells = jax.tree.map(put, cells, sums)
    began = (T - 1) >> np.arange(kept) << np.arange(kept)
    asks = jnp.take(q, began, axis=n), jnp.take(q_poison, began, axis=n)
    return Cells(*cells, (k_poison + v_poison).sum(-2), *asks, jnp.int32(T))


def step(state: Cells, q, k, v) -> tuple[Cells, Float[Array, "*B 1 N D"]]:
    """Add one token to its cell of each level and attend to the kept cells, in float32.

    Raises ValueError unless q, k and v are one token in the shape the state was made for.
    """
    *batch, _, _, K, H = state.k.shape
    N, D = state.q.shape[-2], state.v.shape[-1]
    for name, x, want in (("q", q, (N, H)), ("k", k, (K, H)), ("v", v, (K, D))):
        if x.shape != (*batch, 1, *want):
            want = [*batch, 1, *want]
            raise ValueError(f"{name}: expected one token {want}, got {list(x.shape)}")
    return _stepped(state, q, k, v)


@jax.jit  # for calls outside of jit
def _stepped(state: Cells, q, k, v):
    *batch, L, C, K, H = state.k.shape
    N, D = state.q.shape[-2], state.v.shape[-1]
    dtype, once = jnp.result_type(q), jnp.ones((*batch, 1), bool)
    (q, q_poison), (k, k_poison), (v, v_poison) = (clean(x, once) for x in (q, k, v))
    t, level, slot = state.length, jnp.arange(L)[:, None], jnp.arange(C)[None]
    now = t >> level  # [L, 1], the cell of each level in which the token is
    starts = t % (1 << level) == 0
    of_cells = lambda x: x.reshape((1,) * len(batch) + x.shape + (1, 1))
    here = slot == now % C
    here, opened = of_cells(here), of_cells(here & starts)
    size = of_cells(jnp.exp2(level.astype(q.dtype)))

    def add(x, new):
        old = jnp.where(opened, 0, x)
        return old + jnp.where(here, new[..., None, :, :] / size, 0).astype(x.dtype)

    def anew(x, new):
        fresh = starts.reshape((1,) * len(batch) + (L,) + (1,) * (x.ndim - len(batch) - 1))
        return jnp.where(fresh, new.astype(x.dtype), x)

    poison = state.poison + (k_poison + v_poison)[..., 0, :].astype(state.poison.dtype)
    state = Cells(
        add(state.k, k), add(state.v, v), poison,
        anew(state.q, q), anew(state.q_poison, q_poison), t + 1,
    )  # fmt: skip
    cell, block = now - (now - slot) % C, C // 2  # which cell each slot holds
    late, early = now % block >= block // 2, cell % block < block // 2
    afar = (cell // block == now // block - 1) & (late | early)
    near = cell // block >= now // block - 1
    seen = (cell >= 0) & jnp.where(level == 0, near, afar)
    keys, values = state.k.astype(q.dtype), state.v.astype(q.dtype)
    s = dots(state.q.astype(q.dtype)[..., None, :, :] * H**-0.5, keys)  # [*B, L, N, 1, C]
    s = jnp.moveaxis(s + jnp.log(size), -4, -2)  # [*B, N, 1, L, C]
    w = masked_softmax(s.reshape(*batch, N, 1, L * C), seen.reshape(1, 1, L * C))
    out = mix(w, values.reshape(*batch, L * C, K, D))
    read, q_poison = aligned(seen.any(-1, keepdims=True), state.q_poison)
    asked = jnp.where(read, q_poison, 0).sum(-2)
    poison = to_heads(state.poison, N) + asked
    # past its last level it has not kept what the definition sees, and returns NaN
    poison = jnp.where(t < block << L, poison, jnp.nan)
    return state, (out + poison[..., None, :, None]).astype(dtype)
