"""One chunk of the recurrence that `_family.py` states, by products of [C, M] and [C, C] matrices.

Inside a chunk the state is unrolled: row i reads sum_j a_ij u_j + rows_i S, where a_ij are the
decayed scores of its visible past, S the state before the chunk, and u_j what token j wrote: v_j,
or, where tokens erase, the solution of (I + E) u = v - erase S with E the decayed scores of `erase`
and the keys (the WY form of Yang et al. 2024, arXiv:2406.06484).

With a second key, `remove`, row i reads sum_j a_ij v_j - sum_j b_ij u_j + rows_i S, where b and R
are the scores of the rows and of `erase` with `remove`, and u_j is what token j erased: the
solution of (I + R) u = E v + erase S.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from attn._core import isolate
from attn._tokens import to_heads
from attn._wide import finite
from attn.linearized import _decays
from attn.linearized._terms import Read, State, Tokens, heads_of, isolated_terms, low


@dataclasses.dataclass(frozen=True)
class Order:
    """Which tokens see which in a chunk; the last three are None where all is one document."""

    past: Bool[Array | np.ndarray, "#B 1 1 C C"]
    strictly: Bool[Array | np.ndarray, "#B 1 1 C C"]
    from_state: Bool[Array, "B 1 1 C"] | None  # the token continues the state's document
    to_state: Bool[Array, "B 1 C"] | None  # its document may go on after the chunk
    goes_on: Bool[Array, "B 1"] | None  # the state before may be seen after the chunk


def _order(run, before, C) -> Order:
    if run is None:
        lower = np.tri(C, dtype=bool)[None, None, None]
        return Order(lower, lower & ~np.eye(C, dtype=bool), None, None, None)
    same = (run[:, :, None] == run[:, None, :])[:, None, None]
    from_state = (run == before[:, None])[:, None]
    to_state = (run == run[:, -1:])[:, None]
    past = jnp.tril(same), jnp.tril(same, -1)
    return Order(*past, from_state[:, :, None], to_state, from_state[..., -1])


@dataclasses.dataclass(frozen=True)
class _Ready:
    """The `Terms` of a chunk, heads first: a state for each of K heads, G query heads to each."""

    q: Float[Array, "B K G C M"]
    k: Float[Array, "B K C M"]
    log_decay: Float[Array, "B K C #M"] | None
    erase: Float[Array, "B K 1 C M"] | None
    remove: Float[Array, "B K C M"] | None
    log_weight: Float[Array, "B K C"] | None


def _only(where, x):
    """x where `where`, whose axes are x's first ones, and 0 elsewhere."""
    if where is None:
        return x
    return jnp.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), x, 0)


def advance(form, learned: dict, state: State, tokens: Tokens, mute=None) -> tuple[State, Read]:
    """C tokens after `state`: the state after them, and what they read; queries that are `mute` [B,
    C, N] are taken as 0."""
    return meet(form, learned, state, tokens, mute)(state)


def meet(
    form, learned: dict, state: State, tokens: Tokens, mute=None
) -> Callable[..., tuple[State, Read]]:
    """`advance` as a function of (state, values) alone, linear in the values and the state's sums:
    how the C tokens interact depends only on `state.run` and `state.top`."""
    t, own_values, poison, q_poison = _prepared(form, learned, tokens, mute)
    order = _order(tokens.run, state.run, tokens.q.shape[1])
    seen = order.strictly if form.reads_before else order.past
    decayed, top = _decayed(t, form.reads_before, order, state.top)
    rows = t.q if t.erase is None else jnp.concatenate([t.q, t.erase], 2)
    a, now, kept, total = decayed(rows, t.k)
    G = t.q.shape[2]
    split = lambda a: (jnp.where(seen, a[:, :, :G], 0), jnp.where(order.strictly, a, 0)[:, :, -1])
    a, erased = split(a)
    kept = _only(order.to_state, kept)
    over = 0.0
    if t.erase is not None:
        # what is written depends on the past, whose gradients an overflowing row must not reach
        a, over = isolate(a)
        if t.remove is None:
            solve = _solver(erased, order)
        else:
            b, _, removed_kept, _ = decayed(rows, t.remove)
            b, removed = split(b)
            removed_kept = _only(order.to_state, removed_kept)
            erased, beyond = isolate(erased)
            solve = _solver(removed, order)

    def follow(state: State, v: Float[Array, "B K C D"] = own_values) -> tuple[State, Read]:
        old = _only(order.from_state, _mix(now, state.kv))
        old, old_erased = old[:, :, :G], old[:, :, -1]
        kv = _only(order.goes_on, state.kv * total[..., None])
        lost = 0.0
        if t.erase is None:
            sums, kv = _mix(a, v) + old, kv + kept.mT @ v
        elif t.remove is None:
            u, lost = solve(v - old_erased)
            sums, kv = _mix(a, u) + old, kv + kept.mT @ u
        else:
            u, lost = solve(erased @ v + old_erased + beyond[..., None])
            sums = _mix(a, v) - _mix(b, u) + old
            kv = kv + kept.mT @ v - removed_kept.mT @ u
        k, weight = state.k, None
        if form.normalised:
            weight = a.sum(-1) + _only(order.from_state, _mix(now, state.k[..., None])[..., 0])
            k = _only(order.goes_on, k * total) + kept.sum(-2)
        # a row is NaN exactly if it, or a token that it sees, was not finite, or wrote what was not
        spoilt = poison + lax.stop_gradient(lost)
        met = jnp.where(seen, spoilt[:, :, None, None, :], 0).sum(-1) + q_poison + over
        met = met + _only(order.from_state, state.poison[..., None, None] + jnp.zeros_like(met))
        spoilt = _only(order.to_state, spoilt).sum(-1) + _only(order.goes_on, state.poison)
        run = state.run if tokens.run is None else tokens.run[:, -1]
        return State(kv, k, top, run, spoilt), Read(sums, weight, met, form.floor)

    return follow


def _mix(a: Float[Array, "B K G C S"], v: Float[Array, "B K S D"]) -> Float[Array, "B K G C D"]:
    B, K, G, C, S = a.shape
    return (a.reshape(B, K, G * C, S) @ v).reshape(B, K, G, C, -1)


def _solver(e: Float[Array, "*B C C"], order: Order):
    """x -> (I + e)^-1 x of a strictly lower e, and the poison of rows that overflow, which must not
    reach earlier rows or their gradients: 0 * inf."""
    # already 0 elsewhere, but its gradient d_u x^T is not: 0 * inf from tokens a row does not see
    inverse = jnp.where(order.past[:, :, 0], _inverse(e), 0)
    inverse, within = isolate(inverse)

    def solve(x: Float[Array, "*B C D"]):
        x, before = isolate(x)
        u, after = isolate(inverse @ x)
        return u, within + before + after

    return solve


@jax.custom_jvp
def _inverse(e: Float[Array, "*B C C"]) -> Float[Array, "*B C C"]:
    """(I + e)^-1 of a strictly lower e, by recursive halving: products only. (A triangular solve
    inside a scan can hang XLA's CPU threads, and would run on one.)"""
    crosses, ones = _decays.crosses(e)
    x = jnp.ones_like(ones)
    for cross in crosses:
        first, second = _decays.halves(x)
        x = _decays.joined(first, -_product(second, _product(cross, first)), second)
    return x[..., 0, :, :]


def _product(x: Float[Array, "*B n c c"], y: Float[Array, "*B n c c"]) -> Float[Array, "*B n c c"]:
    """x @ y; of many small matrices by one elementwise loop, as calls would cost more."""
    return x @ y if x.shape[-1] > 4 else (x[..., None] * y[..., None, :, :]).sum(-2)


@_inverse.defjvp
def _inverse_derivative(primals, tangents):
    x = _inverse(*primals)
    fine = isolate(x)[0]
    return x, -fine @ (tangents[0] @ fine)


def _prepared(form, learned, tokens, mute):
    """The terms, heads first ([B, K, C, ...], queries [B, K, G, C, M]) and 0 where hidden or not
    finite; the values; and the poison of keys [B, K, C] and queries [B, K, G, C]."""
    B, C, N = tokens.q.shape[:3]
    arrays = tokens.q, tokens.k, tokens.gates
    terms, q_poison, poisons = isolated_terms(form, learned, *arrays, 2)
    v, v_poison = isolate(tokens.v)
    K = heads_of(terms)
    spread = lambda x: to_heads(jnp.swapaxes(x, 1, 2), K, 1)
    group = lambda x: jnp.swapaxes(x, 1, 2).reshape(B, K, N // K, C, *x.shape[3:])
    poison = sum(map(spread, poisons), spread(v_poison))
    poison = jnp.where(tokens.seen[:, None], poison, 0)
    shown = tokens.seen[:, None] & (poison == 0)
    hide = lambda x: None if x is None else jnp.where(shown[..., None], spread(x), 0)
    rows = lambda x: None if x is None else hide(x)[:, :, None]
    k = hide(terms.k)
    if mute is not None:  # dt k of Mamba-2, of an unused token: 0 * inf
        k = finite(k)
    weight = terms.log_weight
    if weight is not None:
        weight = jnp.where(shown, spread(weight), low(weight.dtype))
    decay = terms.log_decay
    decay = None if decay is None else hide(jnp.maximum(decay, _decays.FLOOR))
    ready = _Ready(
        q=group(terms.q if mute is None else jnp.where(mute[..., None], 0, terms.q)),
        k=k,
        log_decay=decay,
        erase=rows(terms.erase),
        remove=hide(terms.remove),
        log_weight=weight,
    )
    return ready, spread(v), poison, group(q_poison)


def _decayed(t: _Ready, reads_before: bool, order: Order, top):
    """A function (rows, keys) -> what `_decays` returns for them, and the next state's `top`."""
    dot = lambda rows, keys: jnp.einsum("bkrim,bkjm->bkrij", rows, keys)
    g = t.log_decay
    if g is not None:
        past = order.past
        per_head = lambda rows, keys, own: _decays.per_head(rows, keys, g[..., 0], own, past)
        per_channel = lambda rows, keys, own: _decays.per_channel(rows, keys, g, own)
        scores = per_head if g.shape[-1] == 1 else per_channel

        def erasing(rows, keys):
            # the erase row reads before the token's decay, the query rows after it, except for the
            # token's own key
            asked, erased = rows[:, :, :-1], rows[:, :, -1:]
            rows = jnp.concatenate([asked * jnp.exp(g)[:, :, None], erased], 2)
            a, now, kept, total = scores(rows, keys, False)
            own = (asked * keys[:, :, None]) @ jnp.ones(keys.shape[-1], keys.dtype)
            diagonal = np.eye(a.shape[-1], dtype=bool)[None, None, None]
            a1 = jnp.where(diagonal, own[..., None], a[:, :, :-1])
            return jnp.concatenate([a1, a[:, :, -1:]], 2), now, kept, total

        plain = lambda rows, keys: scores(rows, keys, not reads_before)
        return plain if t.remove is None else erasing, top
    if t.log_weight is None:
        total = jnp.ones((1, 1, 1), t.k.dtype)
        return lambda rows, keys: (dot(rows, keys), rows, keys, total), top
    # weights are held against the largest in the visible past of row i, and nothing else
    w, past = t.log_weight, order.past[:, :, 0]
    nothing = low(w.dtype)
    before = jnp.broadcast_to(top[..., None], w.shape)
    if order.from_state is not None:
        before = jnp.where(order.from_state[:, :, 0], before, nothing)
    top = jnp.where(past, w[..., None, :], nothing).max(-1)
    top = lax.stop_gradient(jnp.maximum(top, before))
    ratio = jnp.exp(jnp.where(past, w[..., None, :] - top[..., None], 0))[:, :, None]
    since = jnp.exp(before - top)[..., None]
    # no minimum: JAX halves its gradient where both are equal, as they are at the largest weight
    below = w - top[..., -1:]
    to_end = jnp.exp(jnp.where(below > 0, 0, below))[..., None]

    def weigh(rows, keys):
        return dot(rows, keys) * ratio, rows * since[:, :, None], keys * to_end, since[..., -1, :]

    return weigh, top[..., -1]
