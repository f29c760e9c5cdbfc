"""Dropout of attention weights, decided by (key, row, column): one mask for every implementation.

The weight of (query i of head n, key j) is dropped where hash(rows[i, n] ^ columns[j, m]) falls
below rate 2^32: random 32-bit words from `key` for each query and each key of every head, and
murmur3's finaliser as the hash. Drawing each block from `jax.random` would tie the mask to the
block size, and costs more than the attention.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from attn._settings import is_number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """What decides the mask: random words for queries and keys, and the rate."""

    rows: UInt32[Array, "*B T N"]
    columns: UInt32[Array, "*B S K"]
    rate: float = dataclasses.field(metadata={"static": True})

    def of_scores(self, w: Float[Array, "*B N T S"]) -> Float[Array, "*B N T S"]:
        """The weights with `rate` of them set to 0 and the others divided by 1 - rate."""
        K, N = self.columns.shape[-1], self.rows.shape[-1]
        columns = jnp.repeat(jnp.moveaxis(self.columns, -1, -2), N // K, axis=-2)
        kept = keep(jnp.moveaxis(self.rows, -1, -2)[..., None], columns[..., None, :], self.rate)
        return jnp.where(kept, w / (1 - self.rate), 0)


def as_dropout(rate: float, key: Array | None, q: Array, k: Array) -> Dropout | None:
    """The Dropout of q [*B, T, N, H] and k [*B, S, K, H], None if `rate` is 0.

    Raises ValueError for a rate outside [0, 1) and for a rate without a key, TypeError for what is
    not a key.
    """
    check_rate(rate)
    if rate == 0:
        return None
    if key is None:
        raise ValueError(f"dropout_key: expected a key with dropout_rate {rate}, got None")
    check_dropout_key(key)
    for_rows, for_columns = jax.random.split(key)
    rows = jax.random.bits(for_rows, q.shape[:-1], jnp.uint32)
    return Dropout(rows, jax.random.bits(for_columns, k.shape[:-1], jnp.uint32), float(rate))


def dropout_of(mechanism, key: Array | None, q: Array, k: Array) -> Dropout | None:
    """The mechanism's dropout of weights, None without a key."""
    return as_dropout(rate_of(mechanism, key), key, q, k)


def rate_of(mechanism, key: Array | None) -> float:
    """The mechanism's `dropout_rate`; 0 without a key, as when nothing is trained."""
    return 0.0 if key is None else mechanism.dropout_rate


def check_dropout_key(key) -> None:
    """Raise TypeError for what is not a key, as a seed, ValueError for several."""
    if not jnp.issubdtype(getattr(key, "dtype", None), jax.dtypes.prng_key):
        raise TypeError(f"dropout_key: expected a key from jax.random.key, got {key!r}")
    if key.shape:
        raise ValueError(f"dropout_key: expected one key, got {list(key.shape)} of them")


def check_rate(rate: float) -> None:
    """Raise ValueError unless `rate` is a number in [0, 1)."""
    if not is_number(rate) or not 0 <= rate < 1:
        raise ValueError(f"dropout_rate: expected a number in [0, 1), got {rate!r}")


def keep(
    rows: UInt32[Array, "*#X"], columns: UInt32[Array, "*#X"], rate: float
) -> Bool[Array, "*X"]:
    """Where a weight is kept."""
    x = rows ^ columns
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    # the last shift of murmur3 would only change bits too low to matter
    return x >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
