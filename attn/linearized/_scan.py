"""The linearized engine: phi(q_i) . sum_j phi(k_j) v_j^T over the keys j that query i may see.

Bidirectional is two matrix products. Causal is a scan over chunks of C tokens: inside a chunk the
masked C x C products, from before it a running state [M, D]. O(T M D) time; the backward pass
keeps one state a chunk and recomputes the rest. States and normalisers are float32 or wider.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._core import apply_weights, isolate, wide
from attn.linearized.feature_maps import FeatureMap
from attn.masks import Causal, Padding, Segments


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What the past amounts to: kv = sum_j e^(w_j - top) phi_j v_j^T, k the same sum of phi_j.

    `top` is the largest log-weight w so far, `run` the document the sums belong to, `poison` NaN
    if a key or value in it was not finite (such keys add nothing: 0 * NaN would reach the gradient
    of documents that cannot see them), else 0.
    """

    kv: Float[Array, "*B K M D"]
    k: Float[Array, "*B K M"]
    top: Float[Array, "*B K"]
    run: Int[Array, "*B"]
    poison: Float[Array, "*B K"]


def empty_state(batch, num_kv_heads, features, value_dim, dtype=jnp.float32) -> State:
    """The state before any token, at least float32: 4 K M (D + 1) bytes a batch row."""
    dtype = jnp.float64 if dtype == jnp.float64 else jnp.float32
    return State(
        jnp.zeros((*batch, num_kv_heads, features, value_dim), dtype),
        jnp.zeros((*batch, num_kv_heads, features), dtype),
        jnp.full((*batch, num_kv_heads), _low(dtype), dtype),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((*batch, num_kv_heads), dtype),
    )


def _low(dtype) -> float:
    """A log-weight of nothing. Finite: -inf - -inf would be nan."""
    return float(jnp.finfo(dtype).min) / 4


def attend(
    phi: FeatureMap,
    params: tuple[Array, ...],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    causal: Causal | None,
    padding: Padding | None,
    segments: Segments | None,
    chunk: int,
) -> Float[Array, "*B T N D"]:
    """Normalised linear attention under the mask terms it knows, of checked arguments.

    `phi(x, *params)` is the feature map, a function that is the same object in every call.
    """
    *batch, T, N, H = q.shape
    S, K = k.shape[-3:-1]
    seen_q, seen_k = jnp.ones(T, bool), jnp.ones(S, bool)
    if padding is not None:
        seen_q, seen_k = padding.seen_queries(T), padding.seen_keys(S)
    # what is hidden may hold NaN: it is zeroed before any arithmetic touches it
    hide = lambda x, seen: jnp.where(seen[..., None, None], wide(x), 0)
    tokens = hide(q, seen_q).reshape(*batch, T, K, N // K, H), hide(k, seen_k), hide(v, seen_k)
    seen_k = jnp.broadcast_to(seen_k, (*batch, S))
    if segments is not None:
        out = _by_segment(phi, params, *tokens, seen_k, causal, segments, chunk)
    elif causal is not None:
        out = _causal(phi, params, *tokens, seen_k, causal.offset, chunk)
    else:
        out = _bidirectional(phi, params, *tokens, seen_k)
    out = jnp.where(seen_q[..., None, None], out.reshape(*batch, T, N, v.shape[-1]), 0)
    return out.astype(q.dtype)


def step(phi, params, state: State, q, k, v) -> tuple[State, Float[Array, "*B 1 N D"]]:
    """One token of causal decoding: the chunked form with a chunk of one."""
    *batch, T, N, H = q.shape
    B, K = math.prod(batch), k.shape[-2]
    flat = lambda x: wide(x).reshape(B, *x.shape[len(batch) :])
    tokens = flat(q).reshape(B, T, K, N // K, H), flat(k), flat(v)
    tokens = *tokens, jnp.ones((B, T), bool), jnp.zeros((B, T), jnp.int32)
    before = jax.tree.map(lambda x: x.reshape(B, *x.shape[len(batch) :]), state)
    after, out = _chunk(phi, params, before, tokens)
    after = jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), after)
    return after, out.reshape(*batch, T, N, v.shape[-1]).astype(q.dtype)


def dense_weights(phi: FeatureMap, params, q, k, seen: Bool[Array, "*B 1 T S"]) -> Array:
    """phi(q_i) . phi(k_j) over the row's sum, [*B, N, T, S]: the definition, O(T S M)."""
    *batch, T, N, H = q.shape
    S, K = k.shape[-3:-1]
    fq, _ = phi(wide(q).reshape(*batch, T, K, N // K, H), *params)
    fk, weight = phi(wide(k), *params)
    a = jnp.einsum("...ikgm,...jkm->...kgij", fq, fk).reshape(*batch, N, T, S)
    if weight is not None:
        w = jnp.repeat(jnp.moveaxis(weight, -1, -2), N // K, axis=-2)[..., None, :]
        top = jnp.max(jnp.where(seen, w, -jnp.inf), -1, keepdims=True, initial=_low(w.dtype))
        a = a * jnp.exp(jnp.where(seen, w - lax.stop_gradient(top), 0))
    a = jnp.where(seen, a, 0)
    return _divide(a, a.sum(-1))


def dense(phi: FeatureMap, params, q, k, v, seen) -> Float[Array, "*B T N D"]:
    """`dense_weights` applied to v."""
    return apply_weights(dense_weights(phi, params, q, k, seen), wide(v), seen)


def _divide(numerator, denominator):
    """A query that meets no key gets 0."""
    return numerator / jnp.where(denominator == 0, 1, denominator)[..., None]


def _keys(phi, params, k, seen) -> tuple[Float[Array, "*L M"], Float[Array, "*L"] | None]:
    """Features and log-weights; hidden keys have no features and the least weight."""
    features, weight = phi(k, *params)
    if weight is not None:
        weight = jnp.where(seen, weight, _low(weight.dtype))
    return jnp.where(seen[..., None], features, 0), weight


def _bidirectional(phi, params, q, k, v, seen):
    (q, q_poison), (k, k_poison), (v, v_poison) = map(isolate, (q, k, v))
    poison = k_poison + v_poison  # [*B, S, K]: zero where padded, for that was zeroed before
    fq, _ = phi(q, *params)
    fk, weight = _keys(phi, params, k, seen[..., None] & (poison == 0))
    if weight is not None:
        top = lax.stop_gradient(weight.max(-2, keepdims=True, initial=_low(weight.dtype)))
        fk = fk * jnp.exp(weight - top)[..., None]
    kv = jnp.einsum("...jkm,...jkd->...kmd", fk, v)
    numerator = jnp.einsum("...ikgm,...kmd->...ikgd", fq, kv)
    out = _divide(numerator, jnp.einsum("...ikgm,...km->...ikg", fq, fk.sum(-3)))
    seen_any = seen.any(-1)[..., None, None, None]
    met = poison.sum(-2)[..., None, :, None] + jnp.where(seen_any, q_poison, 0)
    return out + lax.stop_gradient(met)[..., None]


def _causal(phi, params, q, k, v, seen, offset, chunk):
    """j <= i + offset: the first `offset` keys make the first state, then key i meets query i."""
    T = q.shape[-4]
    n = seen.ndim - 1
    if offset < 0:
        blind = min(-offset, T)
        rest = _causal(phi, params, q[..., blind:, :, :, :], k, v, seen, 0, chunk)
        return jnp.pad(rest, [(0, 0)] * (rest.ndim - 4) + [(blind, 0), (0, 0), (0, 0), (0, 0)])
    state = _start(phi, params, q, v)
    if offset > 0:
        head = lambda x: lax.slice_in_dim(x, 0, min(offset, x.shape[n]), axis=n)
        state = _prefix(phi, params, state, head(k), head(v), head(seen))
    fit = lambda x: _resize(lax.slice_in_dim(x, min(offset, x.shape[n]), None, axis=n), T, n)
    k, v, seen = fit(k), fit(v), fit(seen)
    return _scan(phi, params, state, q, k, v, seen, jnp.zeros_like(seen, jnp.int32), chunk)


def _prefix(phi, params, state: State, k, v, seen) -> State:
    """The state after keys that every query sees."""
    batch, length = seen.shape[:-1], seen.shape[-1]
    if length == 0 or math.prod(batch) == 0:
        return state
    flat = lambda x, n: x.reshape(math.prod(batch), *x.shape[n:])
    k, v, seen, poison = _isolated(*(flat(x, len(batch)) for x in (k, v, seen)))
    fk, weight = _keys(phi, params, k, seen)
    run = jnp.zeros((math.prod(batch), length), jnp.int32)
    state = jax.tree.map(lambda x: flat(x, len(batch)), state)
    state = _absorb(state, fk, weight, poison, v, run)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), state)


def _resize(x, length, axis):
    """Cut or zero-pad an axis to `length`."""
    x = lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, pad)


def _by_segment(phi, params, q, k, v, seen, causal, segments, chunk):
    """Any segment ids: sort keys and queries into one sequence, each query after the keys that it
    may see within its document, and run the causal scan over it with resets."""
    *batch, T = q.shape[:-3]
    S = k.shape[-3]
    spread = lambda x, n: jnp.broadcast_to(x, (*batch, n))
    run = jnp.concatenate([spread(segments.key_ids, S), spread(segments.query_ids, T)], -1)
    offset = causal.offset if causal is not None else S  # every key comes before any query
    position = jnp.concatenate([jnp.arange(S) - offset, jnp.arange(T)])
    is_query = jnp.arange(S + T) >= S
    keys = (run, *(spread(x, S + T) for x in (position, is_query, jnp.arange(S + T))))
    run, _, _, order = lax.sort(keys, num_keys=3)
    gather = lambda x: jnp.take_along_axis(
        x, order.reshape(order.shape + (1,) * (x.ndim - order.ndim)), axis=order.ndim - 1
    )
    pad = lambda x, before, after: jnp.pad(
        x, [(0, 0)] * len(batch) + [(before, after)] + [(0, 0)] * (x.ndim - len(batch) - 1)
    )
    tokens = (gather(pad(q, S, 0)), *(gather(pad(x, 0, T)) for x in (k, v, seen)))
    out = _scan(phi, params, _start(phi, params, q, v), *tokens, run, chunk)
    back = jnp.argsort(order, axis=-1)[..., S:]
    return jnp.take_along_axis(out, back[..., None, None, None], axis=len(batch))


def _start(phi, params, q, v) -> State:
    *batch, _, K, _, H = q.shape
    one = jax.ShapeDtypeStruct((H,), q.dtype)
    features = jax.eval_shape(phi, one, *params)[0].shape[-1]
    return empty_state(tuple(batch), K, features, v.shape[-1], q.dtype)


def _scan(phi, params, state, q, k, v, seen, run, chunk):
    """Chunk after chunk along the length axis; [*B, T, K, G, D]."""
    *batch, T = seen.shape
    B, axis = math.prod(batch), len(batch)
    if T == 0 or B == 0:
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    chunk = min(chunk, T)
    whole = -(-T // chunk) * chunk
    flat = lambda x: _resize(x, whole, axis).reshape(B, whole, *x.shape[axis + 1 :])
    state = jax.tree.map(lambda x: x.reshape(B, *x.shape[axis:]), state)
    # varies over mesh axes as q does under shard_map, and one dtype whatever the ids came in
    run = run.astype(jnp.int32) + jnp.zeros_like(q[..., 0, 0, 0], jnp.int32)
    tokens = tuple(map(flat, (q, k, v, seen, run)))
    # under shard_map what is carried must vary over the mesh axes that the tokens vary over
    zero = tokens[0][0, 0, 0, 0, 0]
    state = jax.tree.map(lambda x: x + jnp.zeros_like(zero, x.dtype), state)
    out = _chunks(phi, chunk, params, state, tokens)
    return out.reshape(*batch, whole, *out.shape[2:])[(slice(None),) * axis + (slice(0, T),)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunks(phi, chunk, params, state, tokens):
    return _chunks_forward(phi, chunk, params, state, tokens)[0]


def _chunks_forward(phi, chunk, params, state, tokens):
    """Slices are cut and written in place: transposing the whole would cost more than the sums."""
    q, _, v, _, _ = tokens

    def body(carry, c):
        state, out = carry
        after, y = _chunk(phi, params, state, _cut(tokens, c, chunk))
        return (after, lax.dynamic_update_slice_in_dim(out, y, c * chunk, 1)), state

    out = jnp.zeros_like(q, shape=(*q.shape[:-1], v.shape[-1]))
    (_, out), states = lax.scan(body, (state, out), jnp.arange(q.shape[1] // chunk))
    return out, (params, states, tokens)


def _chunks_backward(phi, chunk, saved, d_out):
    """From the last chunk to the first; each is computed again from the state before it."""
    params, states, (q, k, v, seen, run) = saved

    def body(carry, xs):
        d_params, d_sums, d_tokens = carry
        c, state = xs
        *qkv, seen_c, run_c = _cut((q, k, v, seen, run), c, chunk)

        def again(params, sums, *qkv):
            before = dataclasses.replace(state, kv=sums[0], k=sums[1])
            after, y = _chunk(phi, params, before, (*qkv, seen_c, run_c))
            return (after.kv, after.k), y

        _, pull = jax.vjp(again, params, (state.kv, state.k), *qkv)
        more, d_sums, *d_qkv = pull((d_sums, _cut(d_out, c, chunk)))
        put = lambda x, y: lax.dynamic_update_slice_in_dim(x, y, c * chunk, 1)
        return (
            jax.tree.map(jnp.add, d_params, more),
            d_sums,
            tuple(map(put, d_tokens, d_qkv)),
        ), None

    zeros = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    last = jax.tree.map(lambda x: x[0], (states.kv, states.k))
    start = zeros(params), zeros(last), zeros((q, k, v))
    xs = jnp.arange(q.shape[1] // chunk), states
    (d_params, (d_kv, d_k), d_tokens), _ = lax.scan(body, start, xs, reverse=True)
    none = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    zero = jnp.zeros_like(states.top[0])
    d_state = State(d_kv, d_k, zero, none(states.run[0]), zero)
    return d_params, d_state, (*d_tokens, none(seen), none(run))


_chunks.defvjp(_chunks_forward, _chunks_backward)


def _cut(tree, c, chunk):
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, c * chunk, chunk, 1), tree)


def _chunk(phi, params, state: State, tokens) -> tuple[State, Float[Array, "B C K G D"]]:
    """C tokens after `state`. Inside, heads come first: fq [B, K, G C, M], fk [B, K, C, M]."""
    q, k, v, seen, run = tokens
    B, C, K, G, H = q.shape
    q, q_poison = isolate(jnp.moveaxis(q, 1, 3).reshape(B, K, G * C, H))
    k, v, seen, poison = _isolated(k, v, seen)
    fq, _ = phi(q, *params)
    fk, weight = _keys(phi, params, k, seen)
    past = jnp.tril(run[:, :, None] == run[:, None, :])[:, None, None]  # [B, 1, 1, C, C]
    same = jnp.tile(run == state.run[:, None], G)[:, None]  # [B, 1, G C]
    rows = lambda x: x.reshape(B, K, G, C, C)
    a, old, old_sum = rows(fq @ fk.mT), fq @ state.kv, (fq * state.k[:, :, None]).sum(-1)
    if weight is not None:
        w, low = weight[:, :, None, None, :], _low(weight.dtype)
        before = jnp.where(same[..., :C], state.top[..., None], low)[:, :, None]  # [B, K, 1, C]
        # the largest weight in the visible past of row i, and nothing else
        top = lax.stop_gradient(jnp.maximum(jnp.where(past, w, low).max(-1), before))
        a = a * jnp.exp(jnp.where(past, w - top[..., None], 0))
        shrink = jnp.tile(jnp.exp(before - top)[:, :, 0], G)
        old, old_sum = old * shrink[..., None], old_sum * shrink
    a = jnp.where(past, a, 0).reshape(B, K, G * C, C)
    numerator = a @ v + jnp.where(same[..., None], old, 0)
    out = _divide(numerator, a.sum(-1) + jnp.where(same, old_sum, 0))
    # a row is NaN exactly if it, or a key that it sees, was not finite
    met = jnp.where(past[:, :, 0], poison[:, :, None, :], 0).sum(-1)
    met = jnp.tile(met, G) + jnp.where(same, state.poison[..., None], 0) + q_poison
    out = out + lax.stop_gradient(met)[..., None]
    out = jnp.moveaxis(out.reshape(B, K, G, C, -1), 3, 1)
    return _absorb(state, fk, weight, poison, v, run), out


def _absorb(state: State, fk, weight, poison, v, run) -> State:
    """The state after these tokens, [B, K, C, ...]: the sums of the last document in them."""
    last = run[:, -1:]
    keep, goes_on = (run == last)[:, None], last == state.run[:, None]  # [B, 1, C], [B, 1]
    top, shrink = state.top, jnp.ones_like(state.top)
    if weight is not None:
        low = _low(weight.dtype)
        before = jnp.where(goes_on, state.top, low)
        top = lax.stop_gradient(jnp.maximum(jnp.where(keep, weight, low).max(-1), before))
        fk = fk * jnp.exp(jnp.where(keep, weight - top[..., None], 0))[..., None]
        shrink = jnp.exp(before - top)
    fk = jnp.where(keep[..., None], fk, 0)
    old_kv = jnp.where(goes_on[..., None, None], state.kv * shrink[..., None, None], 0)
    old_k = jnp.where(goes_on[..., None], state.k * shrink[..., None], 0)
    poison = jnp.where(keep, poison, 0).sum(-1) + jnp.where(goes_on, state.poison, 0)
    return State(old_kv + fk.mT @ v, old_k + fk.sum(-2), top, last[:, 0], poison)


def _isolated(k, v, seen):
    """k, v [B, K, C, ...] and seen [B, K, C] without what is not finite, and the poison it left."""
    k, k_poison = isolate(k.swapaxes(1, 2))
    v, v_poison = isolate(v.swapaxes(1, 2))
    poison = k_poison + v_poison
    return k, v, seen[:, None] & (poison == 0), poison
