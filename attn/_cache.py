"""The key-value cache of token-by-token decoding, shared by variants that keep their keys.

Each head's keys are contiguous, so that a step reads the cache once, from end to end. Non-finite
keys and values are zeroed when they come in and remembered as poison: no step looks for them again.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from attn._axes import aligned
from attn._core import isolate, masked_softmax, scaled
from attn._inputs import check_kept
from attn._settings import check_room_for
from attn._varying import vary
from attn._wide import float_dtype, wide
from attn.biases import ArrayBias, Bias, as_bias
from attn.masks import Mask, Padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The last L keys and values, token t at t mod L, and how many tokens there were. Where the
    first P are `pinned`, they stay and the others share the L - P slots after them in turn."""

    k: Float[Array, "*B K L H"]
    v: Float[Array, "*B K L D"]
    poison: Float[Array, "*B K L"]  # NaN where a key or its value was not finite, else 0
    length: Int[Array, ""]


def empty(batch, num_kv_heads, head_dim, value_dim, size, dtype) -> Cache:
    """Room for `size` tokens: size K (H + D + 1) numbers a batch row. Raises ValueError for an
    invalid size, TypeError for a dtype of no floats."""
    sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
    check_room_for(batch, size, **sizes)
    dtype = float_dtype(dtype)
    zeros = lambda *tail: jnp.zeros((*batch, num_kv_heads, size, *tail), dtype)
    return Cache(zeros(head_dim), zeros(value_dim), zeros(), jnp.int32(0))


def _slot(t, size: int, pinned: int):
    """Where token t goes."""
    return jnp.where(t < pinned, t, pinned + (t - pinned) % (size - pinned))


def held(t, size: int, pinned: int = 0) -> Int[Array, " L"]:
    """Which token each slot holds once token t is there; any number for an empty slot."""
    slots = jnp.arange(size)
    return jnp.where(slots < pinned, slots, jnp.maximum(t - (t - slots) % (size - pinned), 0))


def bias_row(
    bias: Bias | Float[Array, "*#B #N #T #S"] | None, cache: Cache, q, pinned: int = 0
) -> Float[Array, "*#B #N 1 L"] | None:
    """The bias of q, the next token, for each slot: NaN past an array's end.

    Raises ValueError unless it fits the heads of q.
    """
    if (bias := jax.tree.map(wide, as_bias(bias))) is None:
        return None
    slots = held(cache.length, cache.k.shape[-2], pinned)
    row = bias.at(cache.length[None, None], slots[None])
    row = row.reshape((1,) * (q.ndim - row.ndim) + row.shape)
    ArrayBias(row).check(q.shape[:-3], q.shape[-2], 1, cache.k.shape[-2])
    if isinstance(bias, ArrayBias):
        last = min((n for n in bias.values.shape[-2:] if n > 1), default=np.inf)
        row = jnp.where(cache.length < last, row, jnp.nan)
    return row


@functools.partial(jax.jit, static_argnums=(2, 3))  # for calls outside of jit
def fill(
    k: Float[Array, "*B T K H"], v: Float[Array, "*B T K D"], size: int, pinned: int = 0
) -> Cache:
    """The cache after T tokens at once, of which the first `pinned` and the last are kept."""
    T = k.shape[-3]
    k, v, poison = _clean(k, v)
    # the tokens that are kept, each in its slot
    first, rest = min(pinned, T), size - pinned
    last = np.concatenate([np.arange(first), np.arange(max(first, T - rest), T)])
    slots = _slot(last, size, pinned)
    cache = empty(k.shape[:-3], k.shape[-3], k.shape[-1], v.shape[-1], size, jnp.result_type(k))
    put = lambda x, new, axis: x.at[(..., slots, *(slice(None),) * axis)].set(
        jnp.take(new, last, axis=new.ndim - 1 - axis)
    )
    return Cache(put(cache.k, k, 1), put(cache.v, v, 1), put(cache.poison, poison, 0), jnp.int32(T))


def append(cache: Cache, k, v, pinned: int = 0) -> Cache:
    """The cache with one more token, in place of the oldest when full.

    Raises ValueError unless k and v are one token in the shape the cache was made for, and for a
    cache of size 0.
    """
    check_token(cache, k, v)
    *batch, _, L, _ = cache.k.shape
    slot, axis = _slot(cache.length, L, pinned), len(batch) + 1
    put = lambda x, new: lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), slot, axis)
    k, v, poison = _clean(k, v)
    return Cache(put(cache.k, k), put(cache.v, v), put(cache.poison, poison), cache.length + 1)


def tokens(cache: Cache) -> tuple[Float[Array, "*B L K H"], Float[Array, "*B L K D"], Mask]:
    """Keys, values and a mask of the filled slots, as a variant's own definition takes them."""
    k = cache.k + cache.poison[..., None]
    filled = jnp.minimum(cache.length, k.shape[-2])
    return jnp.swapaxes(k, -3, -2), jnp.swapaxes(cache.v, -3, -2), Padding(filled)


def check_token(cache: Cache, k, v) -> None:
    """Raise ValueError unless k and v are one token for the cache, and it has room for one."""
    *batch, K, _, H = cache.k.shape
    check_room(cache)
    for name, new, width in (("k", k, H), ("v", v, cache.v.shape[-1])):
        want = [*batch, 1, K, width]
        if list(new.shape) != want:
            raise ValueError(f"{name}: expected one token {want}, got {list(new.shape)}")


def check_room(cache: Cache) -> None:
    """Raise ValueError for a cache of size 0."""
    if cache.k.shape[-2] == 0:
        raise ValueError("state: expected one with room for a token, got one of max_length=0")


def check_size(cache: Cache, size: int) -> None:
    """Raise ValueError for a cache of another size than the variant's: it is another variant's."""
    check_kept(cache.k.shape[-2], size)


def check_one_token(q) -> None:
    """Raise ValueError unless q is one token."""
    if q.shape[-3] != 1:
        raise ValueError(f"q: expected one token [*B, 1, N, H], got {list(q.shape)}")


def decode(cache: Cache, attend, q, k, v, bias=None) -> tuple[Cache, Float[Array, "*B 1 N D"]]:
    """Append one token and attend to the cache by `attend(q, k, v, mask=...)`, in float32, with the
    token's row of the bias, if there is one.

    Raises ValueError as `append` does, and unless q is one token too.
    """
    check_one_token(q)
    row = bias_row(bias, cache, q)
    given = {} if row is None else {"bias": row}
    cache = append(cache, k, v)
    keys, values, filled = tokens(cache)
    out = attend(*(wide(x) for x in (q, keys, values)), mask=filled, **given)
    return cache, unless_forgotten(cache, out).astype(jnp.result_type(q))


def unless_forgotten(cache: Cache, out):
    """out, or NaN, to say loudly that the cache has lost keys that the definition sees."""
    return jnp.where(cache.length > cache.k.shape[-2], jnp.nan, out)


def step(
    cache: Cache, q, k, v, *, scale=None, logit_cap=None, sinks=None, bias=None, seen=True, pinned=0
) -> tuple[Cache, Float[Array, "*B 1 N D"]]:
    """Append one token and attend to the cache by softmax, in float32: reads the cache once. `bias`
    is [*B, N, 1, L] or [N, 1, L], for each slot; `seen` [L] is which slots the token sees.

    Raises ValueError as `append` does, and unless q is one token too.
    """
    *batch, K, L, H = cache.k.shape
    N = q.shape[-2]
    if list(q.shape) != [*batch, 1, N, H] or N % K:
        raise ValueError(f"q: expected one token {[*batch, 1, 'N', H]}, got {list(q.shape)}")
    cache = append(cache, k, v, pinned)
    q = scaled(q, scale).reshape(*batch, K, N // K, H)
    there = (jnp.arange(L) < cache.length) & seen
    return cache, _read(logit_cap, cache, q, bias, there, sinks, v)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
def _read(logit_cap, cache: Cache, q, bias, there, sinks, v) -> Float[Array, "*B 1 N D"]:
    """Softmax of the scaled q [*B, K, G, H] over the slots that are `there` [L] in a cache with
    `v`."""
    (*batch, K, L, _), G = cache.k.shape, q.shape[-2]

    def attend(cache):
        # in this order the keys are read as they lie; the other way XLA turns them first
        s = jnp.swapaxes(jnp.einsum("...klh,...kgh->...klg", cache.k.astype(q.dtype), q), -1, -2)
        if logit_cap is not None:
            s = logit_cap * jnp.tanh(s / logit_cap)
        s = (s + cache.poison[..., None, :].astype(s.dtype)).reshape(*batch, K * G, 1, L)
        s = s if bias is None else jnp.add(*aligned(s, bias.astype(s.dtype)))
        w = masked_softmax(s, there[None, None], sinks)
        w = w.reshape(*batch, K, G, L)
        return jnp.einsum("...kgl,...kld->...kgd", w, cache.v.astype(w.dtype))

    # a branch that is always taken, but not known to be: XLA would otherwise fuse writing the token
    # into reading the keys, for which it copies the whole cache where *B or K is 1
    width = cache.v.shape[-1]
    # varying as the other branch does, under shard_map
    nothing = lambda cache: vary(jnp.zeros((*q.shape[:-1], width), q.dtype), q, v)
    out = lax.cond(cache.length > 0, attend, nothing, cache)
    return out.reshape(*batch, 1, K * G, width)


def _clean(k, v):
    """k and v [*B, K, T, *], 0 where not finite, and their poison [*B, K, T]."""
    (k, k_poison), (v, v_poison) = isolate(k), isolate(v)
    heads_first = lambda x: jnp.swapaxes(x, -3, -2)
    return heads_first(k), heads_first(v), jnp.swapaxes(k_poison + v_poison, -1, -2)
