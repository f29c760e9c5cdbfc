"""The linearized engine: the recurrence run over a sequence in chunks, a state between them.

O(T) time. The backward pass keeps the state before each turn of the loop and recomputes the rest.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._varying import vary
from attn._wide import finite
from attn.linearized import _stretch, _work
from attn.linearized._recurrence import advance
from attn.linearized._terms import Read, Sizes, State, Tokens, sizes


def sizes_of(form, learned, tokens: Tokens) -> Sizes:
    """The `Sizes` of the variant `form` on these tokens."""
    n = tokens.seen.ndim
    one = lambda x: jax.ShapeDtypeStruct((1, *x.shape[n:]), x.dtype)
    q, k, gates = jax.tree.map(one, (tokens.q, tokens.k, tokens.gates))
    return sizes(form, q, k, {**gates, **learned})


def scan(form, learned, state: State, tokens: Tokens) -> tuple[State, Float[Array, "*B T N D"]]:
    """(state, outputs) after `state`, chunk after chunk along the length axis."""
    *batch, T = tokens.seen.shape
    n, B = len(batch), math.prod(batch)
    size = sizes_of(form, learned, tokens)
    chunk = _work.chunk_of(form.chunk, T, size, tokens.v.shape[-1])
    turn = _Turn(form, size, _work.at_once(chunk, -(-T // chunk)))
    length = turn.chunks * chunk
    whole = -(-T // length) * length

    def flat(x, **mode):
        x = x.reshape(B, T, *x.shape[n + 1 :])
        return jnp.pad(x, [(0, 0), (0, whole - T)] + [(0, 0)] * (x.ndim - 2), **mode)

    # padding is hidden and of the last token's document: the state passes through
    run = None if tokens.run is None else flat(tokens.run, mode="edge")
    state = jax.tree.map(lambda x: x.reshape(B, *x.shape[n:]), state)
    tokens = dataclasses.replace(jax.tree.map(flat, tokens), run=run)
    # under shard_map what is carried must vary as what is added to it
    learned, state, tokens = vary((learned, state, tokens))
    unroll = _work.unroll(size, whole // length) if turn.chunks == 1 else (1, 1)
    state, out = _chunks(turn, length, unroll, learned, state, tokens)
    state = jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), state)
    return state, out[:, :T].reshape(*batch, T, *out.shape[2:])


@dataclasses.dataclass(frozen=True)
class _Turn:
    """One turn of the loop: one chunk, or several side by side."""

    form: Any
    size: Sizes
    chunks: int

    def __call__(self, *state_and_tokens) -> tuple[State, Read]:
        if self.chunks == 1:
            return advance(self.form, *state_and_tokens)
        return _stretch.advance(self.form, self.size, self.chunks, *state_and_tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _chunks(turn, length, unroll, learned, state, tokens):
    return _chunks_forward(turn, length, unroll, learned, state, tokens)[0]


def _chunks_forward(turn, length, unroll, learned, state, tokens):
    """Slices are cut and written in place: transposing the whole would cost more than the sums."""
    q, v = tokens.q, tokens.v

    def body(carry, c):
        state, out = carry
        # `vjp` replaces functions by the rules of their custom derivatives: these have a `jvp`
        (after, read), _ = jax.vjp(turn, learned, state, _cut(tokens, c, length))
        return (after, lax.dynamic_update_slice_in_dim(out, read.out(), c * length, 1)), state

    out = jnp.zeros_like(q, shape=(*q.shape[:-1], v.shape[-1]))
    count = q.shape[1] // length
    (state, out), states = lax.scan(body, (state, out), jnp.arange(count), unroll=unroll[0])
    return (state, out), (learned, states, tokens, out)


def _chunks_backward(turn, length, unroll, saved, cotangents):
    """From the last chunk to the first; each is recomputed from the state before it."""
    learned, states, tokens, out = saved
    d_state, d_out = cotangents
    floats = lambda t: (t.q, t.k, t.v, t.gates)
    sums_of = lambda s: (s.kv, s.k)

    def body(carry, xs):
        d_learned, d_sums, d_tokens = carry
        c, state = xs
        piece, (made, d_made) = _cut(tokens, c, length), _cut((out, d_out), c, length)
        # an unused row that overflowed reads with q = 0, and from finite sums: 0 * inf
        mute = ~jnp.isfinite(made).all(-1)

        def again(learned, sums, floats):
            before = dataclasses.replace(state, kv=sums[0], k=sums[1])
            these = Tokens(*floats, piece.seen, piece.run)
            after, read = turn(learned, before, these, mute)
            return (sums_of(after), (read.sums, read.weight)), read

        sums = jax.tree.map(finite, sums_of(state))
        _, pull, read = jax.vjp(again, learned, sums, floats(piece), has_aux=True)
        # not recomputed: the quotient's gradient takes the saved result
        more, d_sums, d_piece = pull((d_sums, read.pull(made, d_made, mute)))
        put = lambda x, y: lax.dynamic_update_slice_in_dim(x, y, c * length, 1)
        d_learned = jax.tree.map(jnp.add, d_learned, more)
        return (d_learned, d_sums, jax.tree.map(put, d_tokens, d_piece)), None

    zeros = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    start = zeros(learned), sums_of(d_state), zeros(floats(tokens))
    xs = jnp.arange(tokens.q.shape[1] // length), states
    result, _ = lax.scan(body, start, xs, reverse=True, unroll=unroll[1])
    d_learned, (d_kv, d_k), d_tokens = result
    none = lambda x: None if x is None else np.zeros(x.shape, jax.dtypes.float0)
    nothing = jnp.zeros_like(states.top[0])
    d_state = State(d_kv, d_k, nothing, none(states.run[0]), nothing)
    return d_learned, d_state, Tokens(*d_tokens, none(tokens.seen), none(tokens.run))


_chunks.defvjp(_chunks_forward, _chunks_backward)


def _cut(tree, c, chunk):
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, c * chunk, chunk, 1), tree)
