"""Random keys by name: adding or changing one part of a model changes no other part's draw."""

import zlib

import jax
import jax.numpy as jnp
from jaxtyping import Array


def fold(key: Array | None, *path: str | int | Array) -> Array | None:
    """`key` folded with each name or index of a path in turn; None stays None.

    Raises TypeError for a key that is not an array, such as a seed, ValueError for several keys.
    """
    if key is None:
        return None
    check_key(key)
    for name in path:
        # crc32, not hash(): the same in every process
        number = zlib.crc32(name.encode()) if isinstance(name, str) else name
        key = jax.random.fold_in(key, number)
    return key


def check_key(key) -> None:
    """Raise TypeError for a key that is not an array, such as a seed, ValueError for several."""
    if not hasattr(key, "dtype"):
        raise TypeError(f"key: expected that of jax.random.key(seed), got {key!r}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if key.ndim != (0 if typed else 1):  # jax.random.PRNGKey's is a vector
        raise ValueError(f"key: expected one key, got an array {list(key.shape)}; take one of them")
