"""Keys and queries as one sequence, in which each query comes after the keys that it may see.

`beside_keys`, `by_document` and `into_documents` return (tokens, back): the tokens in that order,
and a function that takes an output in it to the queries' own order.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from attn.linearized._terms import Tokens, beside
from attn.masks import Segments


def beside_keys(tokens: Tokens, offset: int):
    """(tokens, back) with query i beside key i + offset. Beyond the last key there are hidden ones;
    a query before the first sees none and is left out."""
    T, S, n = tokens.q.shape[-3], tokens.k.shape[-3], tokens.seen.ndim - 1
    offset = min(max(offset, -T), S)
    length = max(S, T + offset)

    def padded(x, before, after):
        ends = [((before, after) if axis == n else (0, 0)) + (0,) for axis in range(x.ndim)]
        return lax.pad(x, jnp.zeros((), x.dtype), ends)

    of_keys = lambda x: padded(x, 0, length - S)
    tokens = Tokens(
        q=padded(tokens.q, offset, length - T - offset),
        k=of_keys(tokens.k),
        v=of_keys(tokens.v),
        gates=jax.tree.map(of_keys, tokens.gates),
        seen=of_keys(tokens.seen),
        run=None,
    )
    return tokens, lambda out: padded(out, -offset, T + offset - length)


def by_document(tokens: Tokens, ids: Int[Array, "*#B T"]):
    """(tokens, back), document after document, where each query is beside its own key."""
    n, ids = tokens.seen.ndim - 1, jnp.broadcast_to(ids, tokens.seen.shape)
    order = jnp.argsort(ids, stable=True)
    in_order = (ids[..., 1:] >= ids[..., :-1]).all()

    def take(tree, at):
        pick = lambda x: jnp.take_along_axis(x, beside(at, x, n), axis=n)
        # most are packed in order, and picking costs as much as a third of attention
        return lax.cond(in_order, lambda x: x, lambda x: jax.tree.map(pick, x), tree)

    run = _numbered(jnp.take_along_axis(ids, order, -1))
    tokens = dataclasses.replace(take(tokens, order), run=run)
    return tokens, lambda out: take(out, jnp.argsort(order))


def into_documents(tokens: Tokens, segments: Segments, offset: int, reads_before: bool):
    """(tokens, back) with keys and queries sorted into one sequence, document after document, each
    query after the keys that it may see."""
    T, S, n = tokens.q.shape[-3], tokens.k.shape[-3], tokens.seen.ndim - 1
    spread = lambda x, length: jnp.broadcast_to(x, (*tokens.seen.shape[:-1], length))
    queries, keys = segments.ids
    run = jnp.concatenate([spread(keys, S), spread(queries, T)], -1)
    position = jnp.concatenate([jnp.arange(S) - offset, jnp.arange(T)])
    later = (jnp.arange(S + T) >= S) != reads_before
    keys = (run, *(spread(x, S + T) for x in (position, later, jnp.arange(S + T))))
    run, _, _, order = lax.sort(keys, num_keys=3)
    both = lambda x, before, after: jnp.pad(
        x, [(0, 0)] * n + [(before, after)] + [(0, 0)] * (x.ndim - n - 1)
    )
    take = lambda x, at: jnp.take_along_axis(x, beside(at, x, n), axis=n)
    of_keys = lambda x: take(both(x, 0, T), order)
    tokens = Tokens(
        q=take(both(tokens.q, S, 0), order),
        k=of_keys(tokens.k),
        v=of_keys(tokens.v),
        gates=jax.tree.map(of_keys, tokens.gates),
        seen=of_keys(tokens.seen),
        run=_numbered(run),
    )
    back = jnp.argsort(order, axis=-1)[..., S:]
    return tokens, lambda out: take(out, back)


def _numbered(ids: Int[Array, "*B L"]) -> Int[Array, "*B L"]:
    """The numbers of sorted documents: their ids may be wider than what a state holds."""
    begins = ids[..., 1:] != ids[..., :-1]
    return jnp.pad(jnp.cumsum(begins, -1, dtype=jnp.int32), [(0, 0)] * (ids.ndim - 1) + [(1, 0)])


def sighted(tokens: Tokens) -> Tokens:
    """The ordered tokens, with 0 for each query that sees no key: its output is 0 even if q is
    NaN."""
    at = jnp.broadcast_to(jnp.arange(tokens.seen.shape[-1]), tokens.seen.shape)
    last = lambda there: lax.cummax(jnp.where(there, at, -1), axis=at.ndim - 1)
    begins = at == 0 if tokens.run is None else jnp.diff(tokens.run, prepend=-1, axis=-1) > 0
    meets = beside(last(tokens.seen) >= last(begins), tokens.q, at.ndim - 1)
    return dataclasses.replace(tokens, q=jnp.where(meets, tokens.q, 0))
