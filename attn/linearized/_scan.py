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
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._core import apply_weights, isolate, wide
from attn.linearized.feature_maps import FeatureMap
from attn.masks import Causal, Padding, Segments


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What the past amounts to: kv = sum_j e^(w_j - top) phi_j v_j^T, k the same sum of phi_j.

    `top` is the largest log-weight w so far, `run` the document the sums belong to.
    """

    kv: Float[Array, "*B K M D"]
    k: Float[Array, "*B K M"]
    top: Float[Array, "*B K"]
    run: Int[Array, "*B"]


def empty_state(batch, num_kv_heads, features, value_dim, dtype=jnp.float32) -> State:
    """The state before any token, at least float32: 4 K M (D + 1) bytes a batch row."""
    dtype = jnp.float64 if dtype == jnp.float64 else jnp.float32
    return State(
        jnp.zeros((*batch, num_kv_heads, features, value_dim), dtype),
        jnp.zeros((*batch, num_kv_heads, features), dtype),
        jnp.full((*batch, num_kv_heads), _low(dtype), dtype),
        jnp.zeros(batch, jnp.int32),
    )


def _low(dtype) -> float:
    """A log-weight of nothing. Finite: -inf - -inf would be nan."""
    return float(jnp.finfo(dtype).min) / 4


def attend(
    phi: FeatureMap | tuple[FeatureMap, FeatureMap],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    causal: Causal | None,
    padding: Padding | None,
    segments: Segments | None,
    chunk: int,
) -> Float[Array, "*B T N D"]:
    """Normalised linear attention under the mask terms it knows, of checked arguments."""
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
        out = _by_segment(phi, *tokens, seen_k, causal, segments, chunk)
    elif causal is not None:
        out = _causal(phi, *tokens, seen_k, causal.offset, chunk)
    else:
        out = _bidirectional(phi, *tokens, seen_k)
    out = jnp.where(seen_q[..., None, None], out.reshape(*batch, T, N, v.shape[-1]), 0)
    return out.astype(q.dtype)


def step(phi: FeatureMap, state: State, q, k, v) -> tuple[State, Float[Array, "*B 1 N D"]]:
    """One token of causal decoding: the chunked form with a chunk of one."""
    *batch, T, N, H = q.shape
    K = k.shape[-2]
    grouped = wide(q).reshape(*batch, T, K, N // K, H)
    seen, run = jnp.ones((*batch, T), bool), jnp.zeros((*batch, T), jnp.int32)
    state, out = _chunk(phi, state, (grouped, wide(k), wide(v), seen, run))
    return state, out.reshape(*batch, T, N, v.shape[-1]).astype(q.dtype)


def dense_weights(phi: FeatureMap, q, k, seen: Bool[Array, "*B 1 T S"]) -> Array:
    """phi(q_i) . phi(k_j) over the row's sum, [*B, N, T, S]: the definition, O(T S M)."""
    *batch, T, N, H = q.shape
    S, K = k.shape[-3:-1]
    fq, _ = phi(wide(q).reshape(*batch, T, K, N // K, H))
    fk, weight = phi(wide(k))
    a = jnp.einsum("...ikgm,...jkm->...kgij", fq, fk).reshape(*batch, N, T, S)
    if weight is not None:
        w = jnp.repeat(jnp.moveaxis(weight, -1, -2), N // K, axis=-2)[..., None, :]
        top = jnp.max(jnp.where(seen, w, -jnp.inf), -1, keepdims=True, initial=_low(w.dtype))
        a = a * jnp.exp(jnp.where(seen, w - lax.stop_gradient(top), 0))
    a = jnp.where(seen, a, 0)
    return _divide(a, a.sum(-1))


def dense(phi: FeatureMap, q, k, v, seen) -> Float[Array, "*B T N D"]:
    """`dense_weights` applied to v."""
    return apply_weights(dense_weights(phi, q, k, seen), wide(v), seen)


def _divide(numerator, denominator):
    """A query that meets no key gets 0."""
    return numerator / jnp.where(denominator == 0, 1, denominator)[..., None]


def _keys(phi, k, seen) -> tuple[Float[Array, "*B C K M"], Float[Array, "*B C K"] | None]:
    """Features and log-weights; hidden keys have no features and the least weight."""
    features, weight = phi(k)
    if weight is not None:
        weight = jnp.where(seen[..., None], weight, _low(weight.dtype))
    return jnp.where(seen[..., None, None], features, 0), weight


def _bidirectional(phi, q, k, v, seen):
    fq, _ = phi(q)
    fk, weight = _keys(phi, k, seen)
    if weight is not None:
        top = lax.stop_gradient(weight.max(-2, keepdims=True, initial=_low(weight.dtype)))
        fk = fk * jnp.exp(weight - top)[..., None]
    kv = jnp.einsum("...jkm,...jkd->...kmd", fk, v)
    numerator = jnp.einsum("...ikgm,...kmd->...ikgd", fq, kv)
    return _divide(numerator, jnp.einsum("...ikgm,...km->...ikg", fq, fk.sum(-3)))


def _causal(phi, q, k, v, seen, offset, chunk):
    """j <= i + offset: the first `offset` keys make the first state, then key i meets query i."""
    T = q.shape[-4]
    n = seen.ndim - 1
    if offset < 0:
        blind = min(-offset, T)
        rest = _causal(phi, q[..., blind:, :, :, :], k, v, seen, 0, chunk)
        return jnp.pad(rest, [(0, 0)] * (rest.ndim - 4) + [(blind, 0), (0, 0), (0, 0), (0, 0)])
    state = _start(phi, q, v)
    if offset > 0:
        head = lambda x: lax.slice_in_dim(x, 0, min(offset, x.shape[n]), axis=n)
        fk, weight = _keys(phi, head(k), head(seen))
        poison = isolate(head(k))[1] + isolate(head(v))[1]
        run = jnp.zeros_like(head(seen), jnp.int32)
        state = _absorb(state, fk, weight, poison, isolate(head(v))[0], run)
    fit = lambda x: _resize(lax.slice_in_dim(x, min(offset, x.shape[n]), None, axis=n), T, n)
    k, v, seen = fit(k), fit(v), fit(seen)
    return _scan(phi, state, q, k, v, seen, jnp.zeros_like(seen, jnp.int32), chunk)


def _resize(x, length, axis):
    """Cut or zero-pad an axis to `length`."""
    x = lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, pad)


def _by_segment(phi, q, k, v, seen, causal, segments, chunk):
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
    out = _scan(phi, _start(phi, q, v), *tokens, run, chunk)
    back = jnp.argsort(order, axis=-1)[..., S:]
    return jnp.take_along_axis(out, back[..., None, None, None], axis=len(batch))


def _start(phi, q, v) -> State:
    *batch, _, K, _, H = q.shape
    features = jax.eval_shape(phi, jax.ShapeDtypeStruct((H,), q.dtype))[0].shape[-1]
    return empty_state(tuple(batch), K, features, v.shape[-1], q.dtype)


def _scan(phi, state, q, k, v, seen, run, chunk):
    """Chunk after chunk; every array is cut along its length axis."""
    *batch, T = seen.shape
    if T == 0 or math.prod(batch) == 0:
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype) + 0 * (q.sum() + k.sum() + v.sum())
    chunk = min(chunk, T)
    count, axis = -(-T // chunk), len(batch)

    def cut(x):
        x = _resize(x, count * chunk, axis).reshape(*batch, count, chunk, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    body = jax.checkpoint(functools.partial(_chunk, phi), prevent_cse=False)
    _, out = lax.scan(body, state, tuple(map(cut, (q, k, v, seen, run))))
    out = jnp.moveaxis(out, 0, axis).reshape(*batch, count * chunk, *out.shape[axis + 2 :])
    return lax.slice_in_dim(out, 0, T, axis=axis)


def _chunk(phi, state: State, tokens) -> tuple[State, Float[Array, "*B C K G D"]]:
    q, k, v, seen, run = tokens
    k, k_poison = isolate(k)
    v, v_poison = isolate(v)
    poison = jnp.moveaxis(k_poison + v_poison, -1, -2)[..., :, None, None, :]  # [*B, K, 1, 1, C]
    fq, _ = phi(q)
    fk, weight = _keys(phi, k, seen)
    order = jnp.arange(run.shape[-1])
    past = (order[:, None] >= order) & (run[..., :, None] == run[..., None, :])  # [*B, C, C]
    same = (run == state.run[..., None])[..., None, None, :]  # [*B, 1, 1, C]
    a = jnp.einsum("...ikgm,...jkm->...kgij", fq, fk)
    old = jnp.einsum("...ikgm,...kmd->...kgid", fq, state.kv)
    old_sum = jnp.einsum("...ikgm,...km->...kgi", fq, state.k)
    if weight is not None:
        w = jnp.moveaxis(weight, -1, -2)[..., :, None, None, :]  # [*B, K, 1, 1, C]
        before = jnp.where(same, state.top[..., None, None], _low(w.dtype))  # [*B, K, 1, C]
        top = jnp.where(past[..., None, None, :, :], w, _low(w.dtype)).max(-1)
        top = lax.stop_gradient(jnp.maximum(top, before))  # over the visible past of row i only
        a = a * jnp.exp(jnp.where(past[..., None, None, :, :], w - top[..., None], 0))
        shrink = jnp.exp(before - top)
        old, old_sum = old * shrink[..., None], old_sum * shrink
    a = jnp.where(past[..., None, None, :, :], a + poison, 0)
    numerator = jnp.einsum("...kgij,...jkd->...kgid", a, v) + jnp.where(same[..., None], old, 0)
    out = _divide(numerator, a.sum(-1) + jnp.where(same, old_sum, 0))
    poison = jnp.moveaxis(poison[..., 0, 0, :], -1, -2)
    return _absorb(state, fk, weight, poison, v, run), jnp.moveaxis(out, -2, -4)


def _absorb(state: State, fk, weight, poison, v, run) -> State:
    """The state after these tokens: the sums of the last document in them."""
    last = run[..., -1]
    keep = (run == last[..., None])[..., None]  # [*B, C, 1]
    goes_on = (last == state.run)[..., None]  # [*B, 1]
    top, shrink = state.top, jnp.ones_like(state.top)
    if weight is not None:
        low = _low(weight.dtype)
        top = jnp.where(keep, weight, low).max(-2)
        top = lax.stop_gradient(jnp.maximum(top, jnp.where(goes_on, state.top, low)))
        fk = fk * jnp.exp(jnp.where(keep, weight - top[..., None, :], 0))[..., None]
        shrink = jnp.exp(jnp.where(goes_on, state.top - top, 0))
    fk = jnp.where(keep[..., None], fk + poison[..., None], 0)
    old_kv = jnp.where(goes_on[..., None, None], state.kv * shrink[..., None, None], 0)
    old_k = jnp.where(goes_on[..., None], state.k * shrink[..., None], 0)
    kv = old_kv + jnp.einsum("...jkm,...jkd->...kmd", fk, v)
    return State(kv, old_k + fk.sum(-3), top, last)
