"""The key-value cache of token-by-token decoding, shared by variants that keep every key."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attn.masks import Mask, Padding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values seen so far, in preallocated arrays, and how many there are."""

    k: Float[Array, "*B L K H"]
    v: Float[Array, "*B L K D"]
    length: Int[Array, ""]


def empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype) -> Cache:
    """Room for `max_length` tokens: 2 max_length K H numbers a batch row (D = H)."""
    shape = (*batch, max_length, num_kv_heads)
    k, v = jnp.zeros((*shape, head_dim), dtype), jnp.zeros((*shape, value_dim), dtype)
    return Cache(k, v, jnp.int32(0))


def append(cache: Cache, k, v) -> tuple[Cache, Mask]:
    """The cache with one token more, and the mask of the filled part."""
    put = lambda x, new: lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), cache.length, -3)
    length = cache.length + 1
    return Cache(put(cache.k, k), put(cache.v, v), length), Padding(length)
