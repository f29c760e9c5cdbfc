"""Which tokens there are, and what is not finite among them: shared by the family."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._core import isolate, wide
from attn.masks import Padding


def seen_tokens(
    padding: Padding | None, batch: tuple[int, ...], T: int, S: int
) -> tuple[Bool[Array, "*B T"], Bool[Array, "*B S"]]:
    """Which queries ask and which keys are there."""
    queries = jnp.ones(T, bool) if padding is None else padding.seen_queries(T)
    keys = jnp.ones(S, bool) if padding is None else padding.seen_keys(S)
    return jnp.broadcast_to(queries, (*batch, T)), jnp.broadcast_to(keys, (*batch, S))


def clean(
    x: Float[Array, "*B S K H"], seen: Bool[Array, "*B S"]
) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K"]]:
    """x in at least float32, 0 where it is hidden or not finite, and the poison of what is seen."""
    return isolate(jnp.where(seen[..., None, None], wide(x), 0))


def to_heads(x: Float[Array, "*B K"], num_heads: int) -> Float[Array, "*B N"]:
    """Key heads, on the last axis, for the query heads that share them."""
    times = num_heads // x.shape[-1]
    return x if times == 1 else jnp.repeat(x, times, axis=-1)
