"""Which queries see a key of their own segment in a range of keys: one sort, O((T + S) log)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from attn._axes import aligned


def sees_own_segment(
    query_ids: Int[Array, "*#B T"],
    key_ids: Int[Array, "*#B S"],
    keys: Bool[Array, "*#B S"],
    first: Int[np.ndarray, " T"],
    past: Int[np.ndarray, " T"],
) -> Bool[Array, "*#B T"]:
    """Whether for query i there is a j in first[i] <= j < past[i] with keys[j] and the same id.

    Queries and keys are sorted together by (id, position), where a query stands at the first key
    it may see: it finds one iff the next key after it is of its id and before past[i].
    """
    T, S = query_ids.shape[-1], key_ids.shape[-1]
    batch = jnp.broadcast_shapes(query_ids.shape[:-1], key_ids.shape[:-1], keys.shape[:-1])
    spread = lambda x: jnp.broadcast_to(x, (*batch, x.shape[-1]))
    both = lambda a, b: jnp.concatenate([spread(a), spread(b)], -1)
    ids = both(query_ids, key_ids)
    hidden = S  # no run reaches this far
    keys, place = aligned(keys, jnp.arange(S))
    position = both(jnp.asarray(first, jnp.int32), jnp.where(keys, place, hidden))
    is_key = both(jnp.zeros(T, jnp.int32), jnp.ones(S, jnp.int32))
    end = both(jnp.asarray(past, jnp.int32), jnp.zeros(S, jnp.int32))
    index = both(jnp.arange(T), T + jnp.arange(S))
    # on a tie the query comes first: it may see the key at first[i]
    ids, position, is_key, end, index = jax.lax.sort(
        (ids, position, is_key, end, index), dimension=-1, num_keys=3
    )
    is_key, place = aligned(is_key, jnp.arange(T + S))
    at = jnp.where(is_key == 1, place, T + S)
    following = jax.lax.cummin(at, axis=at.ndim - 1, reverse=True)
    there = jnp.minimum(following, T + S - 1)
    take = lambda x: jnp.take_along_axis(x, there, -1)
    found = (following < T + S) & (take(ids) == ids) & (take(position) < end)
    _, found = jax.lax.sort((index, found.astype(jnp.int32)), dimension=-1, num_keys=1)
    return found[..., :T] == 1
