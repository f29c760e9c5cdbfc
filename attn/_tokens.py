"""Which tokens are visible, and which are not finite, for variants that mix tokens first."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._axes import conjunction
from attn._core import isolate
from attn._inputs import check_qkv
from attn._wide import wide
from attn.masks import FULL, Padding


def seen_tokens(
    padding: Padding | None, batch: tuple[int, ...], T: int, S: int
) -> tuple[Bool[Array, "*B T"], Bool[Array, "*B S"]]:
    """Which queries and which keys are not padding."""
    queries = jnp.ones(T, bool) if padding is None else padding.seen_queries(T)
    keys = jnp.ones(S, bool) if padding is None else padding.seen_keys(S)
    return jnp.broadcast_to(queries, (*batch, T)), jnp.broadcast_to(keys, (*batch, S))


def own_tokens(
    padding: Padding | None, batch: tuple[int, ...], T: int, S: int
) -> tuple[Bool[Array, "*B T"], Bool[Array, "*B S"]]:
    """Which queries and which keys take part where queries are grouped too. If T = S, token i is
    query i and key i, so unless `padding` says which queries exist, those at hidden keys do not:
    real ones would share their groups."""
    asks, seen = seen_tokens(padding, batch, T, S)
    alike = T == S and padding is not None and padding.queries is None
    return (seen if alike else asks), seen


def no_output(q: Float[Array, "*B T N H"], v: Float[Array, "*B S K D"]) -> Float[Array, "*B T N D"]:
    """The output, 0, where there are no keys, and the empty one where there are no queries."""
    return jnp.zeros((*q.shape[:-1], v.shape[-1]), jnp.result_type(q))


def clean(
    x: Float[Array, "*B S K H"], seen: Bool[Array, "*B S"]
) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K"]]:
    """x in at least float32, 0 where it is hidden or not finite, and the poison of what is seen."""
    return isolate(jnp.where(seen[..., None, None], wide(x), 0))


def to_heads(x: Array, num_heads: int, axis: int = -1) -> Array:
    """Key heads along an axis, repeated for the query heads that share them; jnp.repeat copies even
    for one."""
    times = num_heads // x.shape[axis]
    return x if times == 1 else jnp.repeat(x, times, axis=axis)


def in_blocks(x: Array, size: int, axis: int) -> Array:
    """Axis `axis` in blocks of `size`, the last filled up with 0 or False."""
    ends = [(0, 0)] * x.ndim
    ends[axis] = (0, -x.shape[axis] % size)
    count = -(-x.shape[axis] // size)
    return jnp.pad(x, ends).reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])


def filled(x: Array, length: int, axis: int) -> Array:
    """Axis `axis` cut, or filled up with 0 or False, to `length`."""
    x = jax.lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis)
    ends = [(0, 0)] * x.ndim
    ends[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, ends)


def even_blocks(T: int, most: int) -> tuple[int, int]:
    """How many blocks of at most `most` make up T, and their length if all are equal."""
    count = -(-T // most)
    return count, -(-T // count)


def blocks_first(x: Array, size: int) -> Array:
    """[*B, T, ., .] in blocks of rows, for a loop over them: [blocks, *B, size, ., .]."""
    return jnp.moveaxis(in_blocks(x, size, x.ndim - 3), -4, 0)


def spread(x: Bool[Array, "..."], axis: int) -> Bool[Array, "..."]:
    """Whether x is True anywhere up to each position."""
    return jax.lax.cummax(x.astype(jnp.int8), axis=axis) > 0


def any_past(x: Bool[Array, "*B S"], T: int, offset: int) -> Bool[Array, "*B T"]:
    """Whether x is True at any key that query t, at t + offset, sees under `Causal`."""
    S = x.shape[-1]
    place = jnp.arange(T) + max(min(offset, S), -T)
    found = jnp.take(spread(x, x.ndim - 1), jnp.clip(place, 0, S - 1), axis=-1)
    return conjunction(found, place >= 0)


def matrix_of(
    attend: Callable[[Array, Array, Array], Float[Array, "*B T N S"]],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
) -> Float[Array, "*B N T S"]:
    """The matrix of an attention linear in its values: its outputs for values e_1 ... e_S, in at
    least float32."""
    check_qkv(q, k, k, FULL)
    q, k, S = wide(q), wide(k), k.shape[-3]
    ones = jnp.broadcast_to(jnp.eye(S, dtype=k.dtype)[:, None], (*k.shape[:-1], S))
    return jnp.swapaxes(attend(q, k, ones), -3, -2)
