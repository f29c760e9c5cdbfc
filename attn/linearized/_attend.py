"""The linearized engine: what queries may see, as one ordered sequence or two matrix products.

Where nothing depends on order (no gates, no `Causal`, no `Segments`) the sums are two matrix
products. Otherwise keys and queries are put into one order, along which `_scan.py` runs: O(T) time.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn._axes import aligned, conjunction
from attn._core import isolate
from attn._inputs import check_state
from attn._tokens import no_output, to_heads
from attn._wide import wide
from attn.linearized import _order, _sums
from attn.linearized._scan import scan, sizes_of
from attn.linearized._terms import State, Tokens, beside, empty_state, isolate_gates
from attn.masks import Causal, Padding, Segments


# jitted also when nothing else is: a loop outside of jit is compiled anew by every call
@functools.partial(jax.jit, static_argnums=0)
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
    """The output of the variant `form` under the mask terms it honours, for checked arguments."""
    *batch, T, _, _ = q.shape
    S, D = k.shape[-3], v.shape[-1]
    if 0 in (T, S, D, *batch):
        return no_output(q, v)
    seen_q, seen_k = jnp.ones(T, bool), jnp.ones(S, bool)
    if padding is not None:
        seen_q, seen_k = padding.seen_queries(T), padding.seen_keys(S)
    # what is hidden may hold NaN: it is zeroed before any arithmetic touches it
    hide = lambda x, seen: jnp.where(beside(seen, x, len(batch)), wide(x), 0)
    tokens = Tokens(
        q=hide(q, seen_q),
        k=hide(k, seen_k),
        v=hide(v, seen_k),
        gates={name: hide(x, seen_k) for name, x in gates.items()},
        seen=jnp.broadcast_to(seen_k, (*batch, S)),
        run=None,
    )
    size = sizes_of(form, learned, tokens)
    ordered = size.ordered
    if ordered and causal is None and form.normalised:
        raise NotImplementedError(
            f"mask: {form.name} divides what it has gated, which is defined with Causal only"
        )
    in_order = functools.partial(_in_order, form, learned, tokens, padding, segments)
    offset = 0 if causal is None else causal.offset
    if causal is not None:
        out = in_order(offset)
    elif not ordered:
        out = _unordered(form, size.features, learned, tokens) if segments is None else in_order(S)
    else:  # forward and backward, with the query's own key in both
        out = in_order(offset) + in_order(offset, reverse=True)
        if not form.reads_before:
            out = out - _own_value(_own_score(form), learned, tokens, segments, offset)
    if form.adds_own:
        out = out + _own_value(form.own, learned, tokens, segments, offset)
    out = jnp.where(beside(seen_q, out, len(batch)), out, 0)
    return out.astype(jnp.result_type(q))


@functools.partial(jax.jit, static_argnums=0)
def follow(
    form, state: State, q, k, v, gates: dict[str, Array], learned: dict[str, Array]
) -> tuple[State, Float[Array, "*B T N D"]]:
    """T more tokens of causal decoding after `state`: (the state after them, their outputs)."""
    *batch, T, _, _ = q.shape
    if 0 in (T, *batch):
        # the state must vary over the mesh axes of the tokens, as it does after some tokens
        zero = jnp.zeros_like(q).sum()
        state = jax.tree.map(lambda x: x + zero.astype(x.dtype), state)
        return state, no_output(q, v)
    dtype = jnp.result_type(q)
    q, k, v = map(wide, (q, k, v))
    gates = {name: wide(x) for name, x in gates.items()}
    ones = jnp.ones((*batch, T), bool)
    tokens = Tokens(q, k, v, gates, ones, None)
    _check_state(form, state, learned, tokens)
    state, out = scan(form, learned, state, tokens)
    if form.adds_own:
        out = out + _own_value(form.own, learned, tokens, None, 0)
    return state, out.astype(dtype)


def _check_state(form, state, learned, tokens: Tokens):
    """Raise unless `state` fits these tokens."""
    of = lambda: empty_state(
        tokens.seen.shape[:-1], sizes_of(form, learned, tokens), tokens.v.shape[-1], tokens.q.dtype
    )
    want = jax.eval_shape(of)
    check_state(state, State, tokens.q)
    for field in dataclasses.fields(State):
        shape, came = (jnp.shape(getattr(x, field.name)) for x in (want, state))
        if shape != came:
            raise ValueError(
                f"state: expected {field.name} of {list(shape)} to go with q, k and v, "
                f"got {list(came)}"
            )


def _unordered(form, features: int, learned, tokens: Tokens):
    """The output where every query sees every key that is not hidden."""
    n = tokens.seen.ndim - 1
    flat = lambda x: x.reshape(-1, *x.shape[n:])
    q, k, v, seen = map(flat, (tokens.q, tokens.k, tokens.v, tokens.seen))
    out = _sums.attend(form, features, learned, q, k, v, seen)
    return out.reshape(*tokens.seen.shape[:-1], *out.shape[1:])


def _in_order(form, learned, tokens: Tokens, padding, segments, offset: int, *, reverse=False):
    """The output if query i sees its document's keys up to i + offset; in reverse, from there."""
    T, S, n = tokens.q.shape[-3], tokens.k.shape[-3], tokens.seen.ndim - 1
    if reverse:  # the same in a mirror, where key S - 1 stands at 0
        mirror = lambda x: jnp.flip(x, n)
        tokens = jax.tree.map(mirror, tokens)
        segments = jax.tree.map(lambda ids: jnp.flip(ids, -1), segments)
        return mirror(_in_order(form, learned, tokens, padding, segments, S - T - offset))
    batch, D = tokens.seen.shape[:-1], tokens.v.shape[-1]
    state = empty_state(batch, sizes_of(form, learned, tokens), D, tokens.q.dtype)
    run = lambda tokens: scan(form, learned, state, tokens)[1]
    if segments is not None:
        if segments.key_ids is None and offset == 0:
            tokens, back = _order.by_document(tokens, segments.query_ids)
        else:
            tokens, back = _order.into_documents(tokens, segments, offset, form.reads_before)
        return back(run(_order.sighted(tokens)))
    if padding is None and T == S and offset == 0:
        return run(tokens)  # each query sees its own key
    tokens, back = _order.beside_keys(tokens, offset)
    return back(run(_order.sighted(tokens)))


def _own_score(form):
    def score(q, k, **arrays):
        terms = form.terms(q, k, **arrays)
        k, over = isolate(terms.k)
        grouped = terms.q.reshape(*k.shape[:-1], -1, k.shape[-1])
        score = (grouped * k[..., None, :]).sum(-1) + over[..., None]
        return score.reshape(terms.q.shape[:-1])

    return score


def _own_value(weigh, learned, tokens: Tokens, segments, offset):
    """weigh(q_i, k_p) v_p for the key at the query's own position p = i + offset."""
    T, S, n = tokens.q.shape[-3], tokens.k.shape[-3], tokens.seen.ndim - 1
    p = jnp.arange(T) + offset
    place = jnp.clip(p, 0, S - 1)
    own = lambda x: jnp.take(x, place, axis=n)
    there = conjunction(own(tokens.seen), p == place)
    if segments is not None:
        queries, keys = segments.ids
        there = conjunction(there, jnp.equal(*aligned(queries, jnp.take(keys, place, -1))))
    (q, q_poison), (k, k_poison), (v, v_poison) = map(
        isolate, (tokens.q, own(tokens.k), own(tokens.v))
    )
    gates, gates_poison = isolate_gates({name: own(x) for name, x in tokens.gates.items()}, n + 2)
    weight, over = isolate(weigh(q, k, **gates, **learned)[..., None])
    N = q.shape[-2]
    met = sum((to_heads(p, N, -1) for p in (*gates_poison, k_poison + v_poison)), q_poison + over)
    out = weight * to_heads(v, N, -2) + lax.stop_gradient(met)[..., None]
    return jnp.where(there[..., None, None], out, 0)
