"""Random keys by name: adding or changing one part of a model changes no other part's draw."""

import zlib

import jax
from jaxtyping import Array


def fold(key: Array | None, *path: str | int | Array) -> Array | None:
    """`key` folded with each name or index of a path in turn; None stays None.

    Raises TypeError for a key that is not an array, such as a seed.
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
    """Raise TypeError for a key that is not an array, such as a seed."""
    if not hasattr(key, "dtype"):
        raise TypeError(f"key: expected that of jax.random.key(seed), got {key!r}")
