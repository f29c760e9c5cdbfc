"""A stretch of n chunks at once, for devices that do much side by side and little in turn, as GPUs.

A chunk makes A S + B of the state S before it; A is one number a feature or, where tokens erase, a
matrix. B is what it makes of no state, A what it makes of ones (or the identity) without values.
The states between chunks follow by an associative scan in O(log n) steps, and then all chunks read.
What is said twice here is computed once: XLA merges equal operations.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._core import finite
from attn.linearized._recurrence import Read, Sizes, State, Tokens, empty_state, low
from attn.linearized._recurrence import advance as advance_chunk


def advance(
    form, size: Sizes, n: int, learned: dict, state: State, tokens: Tokens, mute=None
) -> tuple[State, Read]:
    """`_recurrence.advance`, n times: n chunks of C tokens after `state`."""
    (B, K, M, D), dtype = state.kv.shape, state.kv.dtype
    apart = lambda x: x.reshape(B * n, x.shape[1] // n, *x.shape[2:])
    chunks, mute = jax.tree.map(apart, (tokens, mute))
    flat = lambda x: x[:, :-1].reshape(B * n, *x.shape[2:])  # of n + 1 states those before chunks
    after = lambda start, x: jnp.concatenate([start[:, None], x.reshape(B, n, *x.shape[1:])], 1)
    one = lambda before, tokens: advance_chunk(form, learned, before, tokens, mute)[0]

    last = state.run[:, None].repeat(n, 1) if tokens.run is None else chunks.run[:, -1]
    run = after(state.run, last.reshape(B * n))
    meets = np.tri(n + 1, dtype=bool)[None]
    if tokens.run is not None:
        meets = jnp.tril(run[:, :, None] == run[:, None, :])
    before = dataclasses.replace(empty_state((B * n,), size, D, dtype), run=flat(run))
    top = jnp.broadcast_to(state.top[:, None], (B, n + 1, K))
    if size.weighs:
        nothing = low(dtype)
        top = after(state.top, one(before, chunks).top)[:, None]
        top = lax.stop_gradient(jnp.where(meets[..., None], top, nothing).max(2))
        before = dataclasses.replace(before, top=flat(top))

    basis = jnp.eye(M, dtype=dtype) if size.erases else jnp.ones((M, 1), dtype)
    basis = jnp.broadcast_to(basis, (B * n, K, *basis.shape))
    # one column stands for all: XLA would fold a look at M columns of zeros, for seconds
    no_values = jnp.zeros((*chunks.v.shape[:-1], 1), chunks.v.dtype)
    kept = one(
        dataclasses.replace(before, kv=basis), dataclasses.replace(chunks, v=no_values)
    )  # fmt: skip
    wrote = one(before, chunks)
    poison = after(state.poison, wrote.poison + kept.poison)[:, None]
    poison = jnp.where(meets[..., None], poison, 0).sum(2)
    # the sums of keys are one more column: they follow the same way
    beside = lambda s: jnp.concatenate([s.kv, s.k[..., None]], -1) if form.normalised else s.kv
    apart = lambda x: x.reshape(B, n, *x.shape[1:])
    sums = states(apart(kept.kv), apart(beside(wrote)), beside(state))
    if mute is not None:  # on the way back: what overflowed meets what nobody asks about, 0 * inf
        sums = finite(sums)
    kv = sums[..., :D]
    k = sums[..., D] if form.normalised else jnp.broadcast_to(state.k[:, None], (B, n + 1, K, M))

    between = State(kv, k, top, run, poison)
    read = advance_chunk(form, learned, jax.tree.map(flat, between), chunks, mute)[1]
    return jax.tree.map(lambda x: x[:, -1], between), jax.tree.map(lambda x: _joined(x, n), read)


def _joined(x: Float[Array, "Bn K G C ..."], n: int) -> Float[Array, "B K G nC ..."]:
    x = x.reshape(-1, n, *x.shape[1:])
    x = jnp.moveaxis(x, 1, 3)
    return x.reshape(*x.shape[:3], n * x.shape[4], *x.shape[5:])


@jax.custom_vjp
def states(
    a: Float[Array, "B n K M #M"], b: Float[Array, "B n K M D"], start: Float[Array, "B K M D"]
) -> Float[Array, "B n+1 K M D"]:
    """s_0 = start and s_{c+1} = a_c s_c + b_c."""
    return _followed(jnp.pad(a, _one_more(a, 1, 0)), jnp.concatenate([start[:, None], b], 1))


def _forward(a, b, start):
    s = states(a, b, start)
    return s, (a, s)


def _backward(saved, d):
    """The same from the end, d_c + a_c^T e_{c+1}. What overflowed counts nothing: 0 * inf would
    be the gradient of rows that cannot have met it."""
    a, s = saved
    a, s = finite(a), finite(s[:, :-1])
    turned = a.mT if _matrices(a) else a
    e = _followed(jnp.pad(turned, _one_more(a, 0, 1)), d, reverse=True)
    later = e[:, 1:]
    d_a = later @ s.mT if _matrices(a) else (later * s).sum(-1, keepdims=True)
    return d_a, later, e[:, 0]


states.defvjp(_forward, _backward)


def _followed(a, b, *, reverse=False):
    whole = _matrices(a)
    exact = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    product = exact if whole else jnp.multiply

    def then(first, second):
        (a1, b1), (a2, b2) = first, second
        # a chunk where a document begins: what was before it, even Inf, is nothing
        gone = (a2 == 0).all((-2, -1), keepdims=True) if whole else a2 == 0
        clean = finite if reverse else lambda x: x
        return clean(jnp.where(gone, 0, product(a2, a1))), jnp.where(gone, 0, product(a2, b1)) + b2

    return lax.associative_scan(then, (a, b), reverse=reverse, axis=1)[1]


def _matrices(a) -> bool:
    return a.shape[-1] > 1


def _one_more(x, before: int, after: int):
    return [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2)
