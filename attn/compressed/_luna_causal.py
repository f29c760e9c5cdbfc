"""Luna's causal form (Ma et al. 2021, arXiv:2106.01540, on causal attention, and its code).

With means over the visible tokens j <= t,

    a_j = log2(1 + 2^(p k_j / sqrt(H)))       token j's weight in each packed row, [L]
    w_t = softmax(mean_j (q_t . k_j / sqrt(H)) a_j)
    out_t = mean_j (w_t . a_j) v_j

A softmax over tokens, as in the other form, would depend on later ones. The softplus is to the base
2, as in the authors' code, so that a score of 0 has weight 1. That code packs by keys with a
projection of their own, this by k.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._axes import aligned
from attn._core import dots, isolate
from attn._wide import log_add, wide, wide_dtype
from attn.compressed._scanned import over_slots

LOG_2 = math.log(2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The decoding state: how many tokens there were, and the sums of a k and of a v."""

    count: Float[Array, "*B"]
    k: Float[Array, "*B K L H"]
    v: Float[Array, "*B K L D"]
    poison: Float[Array, "*B K"]  # NaN if a key or value was not finite, else 0


def empty(batch, K, L, H, D, dtype) -> State:
    """The state before any token, in at least float32."""
    dtype = wide_dtype(dtype)
    zeros = lambda *tail: jnp.zeros((*batch, *tail), dtype)
    return State(zeros(), zeros(K, L, H), zeros(K, L, D), zeros(K))


def chunk(state: State, q, k, v, seen, packed) -> tuple[State, Float[Array, "*B K G C D"]]:
    """The `_scanned.Chunk`: C tokens after `state`."""
    C, (a, over) = k.shape[-2], _packing(k, packed)
    # of hidden tokens k and v are 0, so only the count must leave them out
    count = state.count[..., None] + jnp.cumsum(seen, -1, dtype=k.dtype)
    share = (1 / jnp.maximum(count, 1))[..., None, None, :, None]  # [*B, 1, 1, C, 1]
    q = q * share
    past = jnp.tril(jnp.ones((C, C), bool))
    so_far = lambda x: jnp.where(*aligned(past, x, jnp.zeros((), x.dtype)))
    # a row whose sums overflow is NaN, at the end: 0 * NaN would reach the gradients of its past
    qk = jnp.einsum("...gth,...ih->...gti", q, k) + over[..., None, None, :]
    (qk, lost), (old_k, k_lost), (old_v, v_lost) = map(isolate, (so_far(qk), state.k, state.v))
    s = jnp.einsum("...gti,...il->...gtl", qk, a)
    s = s + jnp.einsum("...gth,...lh->...gtl", q, old_k) + (k_lost + v_lost)[..., None, None, :]
    w, s_lost = over_slots(s)
    w = w * share
    weights = so_far(jnp.einsum("...gtl,...il->...gti", w, a))
    out = jnp.einsum("...gti,...id->...gtd", weights, v)
    out = out + jnp.einsum("...gtl,...ld->...gtd", w, old_v) + (lost + s_lost)[..., None]
    write = lambda old, x: (
        old + jnp.einsum("...il,...ih->...lh", a, x) + over.sum(-1)[..., None, None]
    )
    return State(count[..., -1], write(state.k, k), write(state.v, v), state.poison), out


def matrix(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    packed: Float[Array, "K L H"],
    seen: Bool[Array, "*#B 1 T S"],
) -> Float[Array, "*B N T S"]:
    """The weight of every pair, for q and k that are 0 where hidden; O(T S) memory."""
    q, k = wide(q), wide(k)
    a, over = _packing(jnp.swapaxes(k, -3, -2), packed)  # [*B, K, S, L]
    a, seen = aligned(jnp.repeat(a + over[..., None], q.shape[-2] // k.shape[-2], axis=-3), seen)
    count = jnp.maximum(seen.sum(-1, keepdims=True), 1).astype(q.dtype)
    # divided before it is summed, as `over_slots` asks
    qk = jnp.where(seen, dots(q, k) * q.shape[-1] ** -0.5, 0) / count
    w = jax.nn.softmax(jnp.einsum("...nts,...nsl->...ntl", qk, a), axis=-1)
    return jnp.where(seen, jnp.einsum("...ntl,...nsl->...nts", w, a), 0) / count


def _packing(
    k: Float[Array, "*B K S H"], packed
) -> tuple[Float[Array, "*B K S L"], Float[Array, "*B K S"]]:
    """a of each token, and the poison of those whose scores overflow."""
    s = jnp.einsum("...sh,...lh->...sl", k, packed.astype(k.dtype) * k.shape[-1] ** -0.5)
    s, over = isolate(s)  # before the softplus: 0 times its derivative would be NaN
    return log_add(s * LOG_2, 0.0) / LOG_2, over
