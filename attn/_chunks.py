"""Queries by chunks, so that arrays made for them fit the processor's cache and are not kept."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from attn._tokens import blocks_first, even_blocks
from attn._turns import held

BUDGET = 2**20  # float32 numbers of the largest array of a chunk
CHUNKS = 1024  # gathering from a chunk adds to the gradients of all keys: a bound keeps that O(S)


def chunk_size(numbers: int, T: int = 0) -> int:
    """How many queries to take at once if each needs an array of so many numbers; for T queries
    that gather, at least so many that there are at most CHUNKS chunks."""
    return max(16, held(BUDGET) // max(1, numbers), -(-T // CHUNKS))


def by_chunks(
    attend: Callable[[Array, Any], Shaped[Array, "*B c N D"]], rows: Any, T: int, size: int
) -> Shaped[Array, "*B T N D"]:
    """attend(i, rows) of about `size` queries i at a time, rows a pytree of [*B, T, ., .].

    Chunks are recomputed in the backward pass: memory is that of one chunk.
    """
    count, size = even_blocks(T, size)
    if count == 1:
        return attend(jnp.arange(T), rows)

    # queries past T are cut off at the end
    i = jnp.minimum(jnp.arange(count * size), T - 1).reshape(count, size)
    body = jax.checkpoint(lambda x: attend(*x), prevent_cse=False)
    blocks = jax.tree.map(lambda x: blocks_first(x, size), rows)
    out = jnp.moveaxis(lax.map(body, (i, blocks)), 0, -4)
    return out.reshape(*out.shape[:-4], count * size, *out.shape[-2:])[..., :T, :, :]
