"""A stretch of n chunks at once, for devices that are fast in parallel but not in turn, as GPUs.

A chunk maps the state S before it to A S + B; A is one number per feature or, where tokens erase, a
matrix. B is its result for S = 0, A that for S of ones (or the identity) without values. From these
follow the states between chunks, and then what all chunks read.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from attn._wide import finite
from attn.linearized import _decays
from attn.linearized._recurrence import meet
from attn.linearized._terms import Read, Sizes, State, Tokens, empty_state, low


def advance(
    form, size: Sizes, n: int, learned: dict, state: State, tokens: Tokens, mute=None
) -> tuple[State, Read]:
    """`_recurrence.advance`, n times: n chunks of C tokens after `state`."""
    (B, K, M, D), dtype, T = state.kv.shape, state.kv.dtype, tokens.q.shape[1]
    apart = lambda x: x.reshape(B * n, T // n, *x.shape[2:])
    chunks, mute = jax.tree.map(apart, (tokens, mute))
    flat = lambda x: x[:, :-1].reshape(B * n, *x.shape[2:])  # of n + 1 states, those before a chunk
    after = lambda start, x: jnp.concatenate([start[:, None], x.reshape(B, n, *x.shape[1:])], 1)
    start = lambda run, top: dataclasses.replace(
        empty_state((B * n,), size, D, dtype), run=flat(run), top=flat(top)
    )
    met = lambda before: meet(form, learned, before, chunks, mute)

    last = state.run[:, None].repeat(n, 1) if tokens.run is None else chunks.run[:, -1]
    run = after(state.run, last.reshape(B * n))
    meets = np.tri(n + 1, dtype=bool)[None]
    if tokens.run is not None:
        meets = jnp.tril(run[:, :, None] == run[:, None, :])
    top = jnp.broadcast_to(state.top[:, None], (B, n + 1, K))
    if size.weighs:
        nothing = start(run, jnp.full_like(top, low(dtype)))
        top = after(state.top, met(nothing)(nothing)[0].top)[:, None]
        top = lax.stop_gradient(jnp.where(meets[..., None], top, low(dtype)).max(2))

    before = start(run, top)
    follow = met(before)
    basis = jnp.eye(M, dtype=dtype) if size.erases else jnp.ones((M, 1), dtype)
    basis = jnp.broadcast_to(basis, (B * n, K, *basis.shape))
    no_values = jnp.zeros((B * n, K, T // n, basis.shape[-1]), dtype)
    # else XLA folds what follows from them while it compiles, for seconds
    basis, no_values = lax.optimization_barrier((basis, no_values))
    kept = follow(dataclasses.replace(before, kv=basis), no_values)[0]
    wrote = follow(before)[0]
    # the sums of keys are one more column: they follow the same way
    beside = lambda s: jnp.concatenate([s.kv, s.k[..., None]], -1) if form.normalised else s.kv
    a, b = (x.reshape(B, n, *x.shape[1:]) for x in (kept.kv, beside(wrote)))
    a, b, first = map(_isolated, (a, b, beside(state)))
    whole = size.erases or size.decay > 1  # or one number for all features
    sums = states(a[0] if whole else a[0][..., :1, :], b[0], first[0])
    overflowed = after(first[1], (a[1] + b[1]).reshape(B * n, K))
    poison = after(state.poison, wrote.poison + kept.poison) + overflowed
    poison = jnp.where(meets[..., None], poison[:, None], 0).sum(2)
    if mute is not None:  # in the backward pass: overflow times an unused row, 0 * inf
        sums = finite(sums)
    kv = sums[..., :D]
    k = sums[..., D] if form.normalised else jnp.broadcast_to(state.k[:, None], (B, n + 1, K, M))

    between = State(kv, k, top, run, poison)
    read = follow(jax.tree.map(flat, between))[1]
    return jax.tree.map(lambda x: x[:, -1], between), jax.tree.map(lambda x: _joined(x, n), read)


def _isolated(x: Float[Array, "*B K M D"]) -> tuple[Array, Float[Array, "*B K"]]:
    """The sums, 0 where not finite, and their poison: 0 * inf would spread to other sums."""
    fine = jnp.isfinite(x).all((-2, -1))
    return finite(x), lax.stop_gradient(jnp.where(fine, 0, jnp.nan).astype(x.dtype))


def _joined(x: Float[Array, "Bn K G C ..."], n: int) -> Float[Array, "B K G nC ..."]:
    x = jnp.moveaxis(x.reshape(-1, n, *x.shape[1:]), 1, 3)
    return x.reshape(*x.shape[:3], n * x.shape[4], *x.shape[5:])


@jax.custom_vjp
def states(
    a: Float[Array, "B n K #M #M"], b: Float[Array, "B n K M D"], start: Float[Array, "B K M D"]
) -> Float[Array, "B n+1 K M D"]:
    """s_0 = start and s_{c+1} = a_c s_c + b_c, with a_c one number, one per feature, or a
    matrix."""
    return _forward(a, b, start)[0]


# does not call `states`: forward over reverse differentiates this code
def _forward(a, b, start):
    first = jnp.pad(a, [(0, 0), (1, 0)] + [(0, 0)] * 3)
    s = _followed(first, jnp.concatenate([start[:, None], b], 1))
    return s, (a, s)


def _backward(saved, d):
    """The same from the end: e_c = d_c + a_c^T e_{c+1}. A NaN goes back to the start of its
    document."""
    a, s = map(finite, saved)
    ends = (a == 0).all((-2, -1))
    lost = _reached(~jnp.isfinite(d).all((-2, -1)), ends)[..., None, None]
    turned = jnp.pad(a.mT if a.shape[-1] > 1 else a, [(0, 0), (0, 1)] + [(0, 0)] * 3)
    e = jnp.flip(_followed(jnp.flip(turned, 1), jnp.flip(finite(d), 1)), 1)
    e = jnp.where(lost, jnp.nan, e)
    later, s = e[:, 1:], s[:, :-1]
    if a.shape[-1] > 1:
        d_a = later @ s.mT
    else:
        d_a = (later * s).sum(-1, keepdims=True)
        d_a = d_a if a.shape[-2] > 1 else d_a.sum(-2, keepdims=True)
    # a new document depends on nothing before it, whatever overflows there
    return jnp.where(ends[..., None, None], 0, d_a), later, e[:, 0]


states.defvjp(_forward, _backward)


def _reached(lost: Bool[Array, "B n+1 K"], ends: Bool[Array, "B n K"]) -> Bool[Array, "B n+1 K"]:
    """Which states a lost (NaN) one follows from: those with no end between."""
    passed = jnp.pad(jnp.cumsum(ends, 1), [(0, 0), (1, 0), (0, 0)])  # ends before each state
    same = passed[:, :, None] == passed[:, None]
    n = lost.shape[1]
    return (same & lost[:, None] & np.tri(n, dtype=bool).T[None, :, :, None]).any(2)


def _followed(a: Float[Array, "B n K #M #M"], b: Float[Array, "B n K M D"]):
    """s_c = a_c s_{c-1} + b_c, in log2(n) steps or, if a_c is one number, by one product; a_0 =
    0."""
    if a.shape[-2] == 1:
        return _decayed(a[..., 0, 0], b)
    n, product = 1, jnp.matmul if a.shape[-1] > 1 else jnp.multiply
    earlier = lambda x: jnp.pad(x[:, :-n], [(0, 0), (n, 0)] + [(0, 0)] * (x.ndim - 2))
    # where a document begins, what was before it counts as 0, even if it overflowed
    ends = (a == 0).all((-2, -1), keepdims=True)
    while n < a.shape[1]:  # each with the 1, 2, 4, ... before it (Hillis and Steele 1986)
        a, b = (jnp.where(ends, 0, product(a, earlier(x))) + y for x, y in ((a, 0), (b, b)))
        ends, n = ends | earlier(ends), 2 * n
    return b


def _decayed(a: Float[Array, "B n K"], b: Float[Array, "B n K M D"]):
    """s_c = sum_{j <= c} left_cj b_j with left_cj = a_{j+1} ... a_c: exp of sums of logarithms,
    each added up from its own terms, never the difference of two running sums."""
    n = a.shape[1]
    positive = a > 0
    g = jnp.where(positive, jnp.log(jnp.where(positive, a, 1)), _decays.FLOOR)
    g = jnp.moveaxis(g, 1, -1)
    upto, later = np.tri(n, dtype=bool), np.tri(n, k=-1, dtype=bool)
    between = jnp.where(later, g[..., None], 0)  # [B, K, l, j]: l is after j
    between = jnp.matmul(upto.astype(g.dtype), between, precision=lax.Precision.HIGHEST)
    left = jnp.where(upto, jnp.exp(between), 0)
    return jnp.einsum("bkcj,bjkmd->bckmd", left, b)
