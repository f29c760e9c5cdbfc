"""The key-value cache of token-by-token decoding, shared by variants that keep their keys."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attn.masks import Mask, Padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The last L keys and values, token t at t mod L, and how many tokens there were."""

    k: Float[Array, "*B L K H"]
    v: Float[Array, "*B L K D"]
    length: Int[Array, ""]


def empty(batch, num_kv_heads, head_dim, value_dim, size, dtype) -> Cache:
    """Room for `size` tokens: size K (H + D) numbers a batch row."""
    shape = (*batch, size, num_kv_heads)
    k, v = jnp.zeros((*shape, head_dim), dtype), jnp.zeros((*shape, value_dim), dtype)
    return Cache(k, v, jnp.int32(0))


def append(cache: Cache, k, v) -> tuple[Cache, Mask]:
    """The cache with one token more (the oldest overwritten when full), and the filled part.

    Raises ValueError unless k and v are one token in the shape the cache was made for.
    """
    for name, new, old in (("k", k, cache.k), ("v", v, cache.v)):
        want = (*old.shape[:-3], 1, *old.shape[-2:])
        if new.shape != want:
            raise ValueError(f"{name}: expected one token {list(want)}, got {list(new.shape)}")
    size = cache.k.shape[-3]
    slot = cache.length % size
    put = lambda x, new: lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), slot, x.ndim - 3)
    length = cache.length + 1
    return Cache(put(cache.k, k), put(cache.v, v), length), Padding(jnp.minimum(length, size))
