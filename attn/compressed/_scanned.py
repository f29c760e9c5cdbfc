"""A state of fixed size that tokens write to and queries read from, in chunks of tokens."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from attn._core import isolate
from attn._inputs import check_state, check_tokens
from attn._prompt import state_for
from attn._tokens import any_past, no_output, seen_tokens, to_heads
from attn._varying import vary
from attn._wide import wide
from attn.masks import Causal, Padding
from attn.mechanism import Mechanism

# (state, q [*B, K, G, C, H], k [*B, K, C, H], v [*B, K, C, D], seen [*B, C], learned) to the state
# after C tokens and what their queries read [*B, K, G, C, D]. Its q are q / sqrt(H), its inputs are
# finite and 0 where hidden, and it passes on `state.poison` [*B, K], NaN once a visible key or
# value was not finite
Chunk = Callable[..., tuple[Any, Array]]


def attend(
    chunk: Chunk,
    learned: Array,
    state: Any,
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    causal: Causal,
    padding: Padding | None,
    size: int,
) -> Float[Array, "*B T N D"]:
    """What each query reads after the keys up to its own position, starting from the empty `state`,
    in chunks of `size`."""
    (*batch, T, _, _), S, n = q.shape, k.shape[-3], q.ndim - 3
    if 0 in (*batch, T, S):
        return no_output(q, v)
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    asks = asks & any_past(seen, T, causal.offset)
    # query t reads after the key at t + offset: one of the two sequences starts that much later
    offset = max(min(causal.offset, S), -T)
    late_q, late_k = max(offset, 0), max(-offset, 0)
    L = T + late_q
    shift = lambda x, by: jnp.pad(
        x, [(0, 0)] * n + [(by, max(L - by - x.shape[n], 0))] + [(0, 0)] * (x.ndim - n - 1)
    )
    cut = lambda x, by: lax.slice_in_dim(shift(x, by), 0, L, axis=n)
    hide = lambda x, there: jnp.where(there[..., None, None], wide(x), 0)
    tokens = cut(hide(q, asks), late_q), cut(hide(k, seen), late_k), cut(hide(v, seen), late_k)
    out = _follow(chunk, learned, state, *tokens, cut(seen, late_k), size)[1]
    out = lax.slice_in_dim(out, late_q, None, axis=n)
    return jnp.where(asks[..., None, None], out, 0).astype(jnp.result_type(q))


def go_on(
    chunk: Chunk, learned: Array, mechanism: Mechanism, state: Any, q, k, v
) -> tuple[Any, Array]:
    """The state and the outputs after any number of tokens from `state`, in the mechanism's chunks.
    Raises ValueError for unequal numbers of queries and keys, and for a state of other sizes,
    TypeError for the state of another mechanism."""
    check_tokens(q, k)
    empty = jax.eval_shape(lambda: state_for(mechanism, q, k, v, max_length=q.shape[-3]))
    check_state(state, type(empty), q)
    got, want = (jax.tree.map(jnp.shape, x) for x in (state, empty))
    if got != want:
        raise ValueError(f"state: expected that of `init_state`, {want}, got {got}")
    if 0 in q.shape[:-2]:
        return state, no_output(q, v)
    seen = jnp.ones(q.shape[:-2], bool)
    state, out = _follow(chunk, learned, state, *map(wide, (q, k, v)), seen, mechanism.chunk)
    return state, out.astype(jnp.result_type(q))


def over_slots(s: Float[Array, "*B T M"]) -> tuple[Float[Array, "*B T M"], Float[Array, "*B T"]]:
    """softmax(s), and the poison of rows that are not finite: their softmax is that of equal
    scores, since 0 * NaN would reach the gradients of their past. Scale before s is summed, not
    here: XLA rounds a product to find the maximum but not to subtract it, e^600 at 1e10."""
    s, poison = isolate(s)
    return jax.nn.softmax(s, axis=-1), poison


@functools.partial(jax.jit, static_argnums=(0, 7))  # for calls outside of jit
def _follow(
    chunk: Chunk,
    learned: Array,
    state: Any,
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B T K H"],
    v: Float[Array, "*B T K D"],
    seen: Bool[Array, "*B T"],
    size: int,
) -> tuple[Any, Float[Array, "*B T N D"]]:
    """The state and the outputs after T more tokens from `state`; inputs are 0 where hidden."""
    (*batch, T, N, H), K = q.shape, k.shape[-2]
    n, dtype = len(batch), q.dtype
    (q, q_poison), (k, k_poison), (v, v_poison) = map(isolate, (q, k, v))
    lost = lax.cummax(jnp.isnan(k_poison + v_poison).astype(jnp.int8), axis=n) > 0  # [*B, T, K]
    poison = jnp.where(lost, jnp.nan, 0).astype(dtype) + state.poison[..., None, :]
    met = to_heads(poison, N) + q_poison
    size = min(size, T)
    # [chunks, *B, heads, size, ...]: what is filled up at the end is hidden
    fill = lambda x: jnp.pad(x, [(0, 0)] * n + [(0, -T % size)] + [(0, 0)] * (x.ndim - n - 1))
    split = lambda x: x.reshape(*batch, -(-T // size), size, *x.shape[n + 1 :])
    cut = lambda x: jnp.moveaxis(split(fill(x)), n, 0)
    queries = cut((q * H**-0.5).reshape(*batch, T, K, N // K, H))
    queries = jnp.moveaxis(queries, n + 1, -2)  # [chunks, *B, K, G, C, H]
    keys, values = (jnp.swapaxes(cut(x), -3, -2) for x in (k, v))
    # under shard_map what is carried must vary as what is added to it
    state = vary(state, queries, keys, values, seen, learned)
    step = jax.checkpoint(lambda state, x: chunk(state, *x, learned), prevent_cse=False)
    after, out = lax.scan(step, state, (queries, keys, values, cut(seen)))
    out = jnp.moveaxis(jnp.moveaxis(out, -2, n + 1), 0, n)  # [*B, chunks, C, K, G, D]
    out = out.reshape(*batch, len(keys) * size, N, v.shape[-1])
    out = lax.slice_in_dim(out, 0, T, axis=n)
    after = dataclasses.replace(after, poison=poison[(slice(None),) * n + (-1,)])
    return after, out + lax.stop_gradient(met)[..., None]
