"""The linearized engine: chunk after chunk, with a state between them.

O(T) time. The backward pass keeps one state a chunk and computes the rest again. Without gates and
without order (no `Causal`, no `Segments`), the sums are two matrix products.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._core import isolate, wide
from attn.linearized._recurrence import State, Tokens, advance, divide, empty_state, heads_of, low
from attn.masks import Causal, Padding, Segments


def attend(
    form,
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    gates: dict[str, Array],
    learned: dict[str, Array],
    *,
    causal: Causal | None,
    padding: Padding | None,
    segments: Segments | None,
) -> Float[Array, "*B T N D"]:
    """`form` under the mask terms it knows, of checked arguments."""
    *batch, T, N, _ = q.shape
    S, D = k.shape[-3], v.shape[-1]
    if 0 in (T, S, math.prod(batch)):
        return jnp.zeros((*batch, T, N, D), q.dtype)
    seen_q, seen_k = jnp.ones(T, bool), jnp.ones(S, bool)
    if padding is not None:
        seen_q, seen_k = padding.seen_queries(T), padding.seen_keys(S)
    # what is hidden may hold NaN: it is zeroed before any arithmetic touches it
    hide = lambda x, seen: jnp.where(_like(seen, x, len(batch)), wide(x), 0)
    tokens = Tokens(
        q=hide(q, seen_q),
        k=hide(k, seen_k),
        v=hide(v, seen_k),
        gates={name: hide(x, seen_k) for name, x in gates.items()},
        seen=jnp.broadcast_to(seen_k, (*batch, S)),
        run=jnp.zeros((*batch, S), jnp.int32),
    )
    ordered = form.gated(learned, tokens)
    if causal is None and segments is None and not ordered:
        out = _unordered(form, learned, tokens)
    else:
        offset = causal.offset if causal is not None else 0 if ordered else S
        out = _sequence(form, learned, tokens, offset, segments)
        if causal is None and ordered:
            back = _flip(tokens, len(batch)), _flip_segments(segments)
            ...
    out = jnp.where(_like(seen_q, out, len(batch)), out, 0)
    return out.astype(q.dtype)
