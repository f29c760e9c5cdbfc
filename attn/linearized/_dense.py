"""The definitions, independent of the engine: a variant's T x S matrix, and its token loop."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned, conjunction
from attn._core import seen_array
from attn._tokens import to_heads
from attn._wide import wide
from attn.linearized._decays import FLOOR
from attn.linearized._terms import beside, divide, low
from attn.masks import Causal, Mask, Padding, Segments


def weights(form, q, k, gates, learned, mask: Mask) -> Float[Array, "*B N T S"]:
    """The matrix that multiplies v. O(T S M), with gates O(T S^2 M): for inspection and tests."""
    (causal, padding, segments), _ = mask.take(Causal, Padding, Segments)
    *batch, T, N, _ = q.shape
    S = k.shape[-3]
    if 0 in (T, S, *batch):
        return jnp.zeros((*batch, N, T, S), wide(q).dtype)
    shown = jnp.ones(S, bool) if padding is None else padding.seen_keys(S)
    seen = jnp.broadcast_to(seen_array(mask, T, S), (*batch, 1, T, S))
    hide = lambda x: jnp.where(beside(shown, x, len(batch)), wide(x), 0)
    arrays = {**{name: hide(x) for name, x in gates.items()}, **learned}
    q, k = jnp.where(beside(seen.any(-1)[..., 0, :], q, len(batch)), wide(q), 0), hide(k)
    t = form.terms(q, k, **arrays)
    ids = jnp.zeros(S, jnp.int32) if segments is None else segments.ids[1]
    together = conjunction(ids[..., :, None] == ids[..., None, :], shown[..., None, :])
    _, together = aligned(seen[..., 0, :, :], together)  # [*B, j, l]
    at, place = jnp.arange(T) + (0 if causal is None else causal.offset), jnp.arange(S)
    i, j = at[:, None], place[None]
    apart = 1 if form.reads_before else 0
    w = _scores(t, t.q, t.k, at, together, apart)
    w = jnp.where(conjunction(seen, j <= i - apart), w, 0)
    if causal is None:
        after = _scores(t, t.q, t.k, at, together, apart, back=True)
        w = jnp.where(conjunction(seen, j > i), after, w)
    if t.log_weight is not None:
        weight = jnp.swapaxes(to_heads(t.log_weight, N, -1), -1, -2)[..., None, :]
        top = jnp.where(seen, weight, low(weight.dtype)).max(-1, keepdims=True)
        w = w * jnp.exp(jnp.where(seen, weight - jax.lax.stop_gradient(top), 0))
    if form.normalised:
        w = divide(w, w.sum(-1), form.floor)
    if t.erase is not None:
        # token j wrote v_j minus what it erased: w (I + E)^-1 = w - w (I + E)^-1 E; with `remove`,
        # whose own scores are R and which rows read by scores b: w - b (I + R)^-1 E
        strictly = conjunction(j < j.T, together[..., None, :, :])
        scores = lambda rows, keys, at, own: _scores(t, rows, keys, at, together, own)
        before = 0 if t.remove is None else 1
        erase = to_heads(t.erase, N, -2)
        written = jnp.where(strictly, scores(erase, t.k, place, before), 0)
        key = t.k if t.remove is None else t.remove
        removed = jnp.where(strictly, scores(erase, key, place, before), 0)
        reads = jnp.where(conjunction(seen, j <= i), scores(t.q, key, at, apart), 0)
        w = w - reads @ _solved(removed, written)
    if form.adds_own:
        own = lambda x: jnp.take(x, jnp.clip(at, 0, S - 1), axis=len(batch))
        arrays = {name: own(x) if name in gates else x for name, x in arrays.items()}
        alone = jnp.swapaxes(form.own(q, own(k), **arrays), -1, -2)[..., None]
        w = w + jnp.where(conjunction(seen, j == i), alone, 0)
    return w


def _solved(e: Float[Array, "*B S S"], b: Float[Array, "*B S S"]) -> Float[Array, "*B S S"]:
    """(I + e)^-1 b of a strictly lower e, row by row. (A triangular solve of matrices that are
    large enough for the threads of its BLAS can hang XLA's CPU threads.)"""

    def solve(e, b):
        row = lambda i, x: x.at[..., i, :].set(b[..., i, :] - (e[..., i, None, :] @ x)[..., 0, :])
        return jax.lax.fori_loop(0, b.shape[-2], row, jnp.zeros_like(b))

    turned = jnp.flip(e.mT, (-2, -1))  # strictly lower too
    return jax.lax.custom_linear_solve(
        lambda x: x + e @ x,
        b,
        lambda _, b: solve(e, b),
        lambda _, b: jnp.flip(solve(turned, jnp.flip(b, -2)), -2),
    )


def _scores(t, rows, keys, at, together, apart, *, back=False):
    """rows_i . keys_j exp(sum of the gates of j's document between them)."""
    N = t.q.shape[-2]
    rows, keys = to_heads(rows, N, -2), to_heads(keys, N, -2)
    if t.log_decay is None:
        return jnp.einsum("...inm,...jnm->...nij", rows, keys)
    g = jnp.maximum(to_heads(t.log_decay, N, -2), FLOOR)
    other = jnp.arange(keys.shape[-3])[None, None]
    i, j = at[:, None, None], other.mT
    before = (other > j) & (other <= i - apart)
    between = (other >= i + apart) & (other < j) if back else before
    between = conjunction(between, together[..., None, :, :]).astype(g.dtype)
    decay = jnp.exp(jnp.einsum("...ijl,...lnm->...ijnm", between, g))
    decay = jnp.broadcast_to(decay, decay.shape[:-1] + rows.shape[-1:])
    return jnp.einsum("...inm,...jnm,...ijnm->...nij", rows, keys, decay)


def loop(form, q, k, v, gates, learned) -> Float[Array, "*B T N D"]:
    """Token by token, as the recurrence is written; causal, no token hidden."""
    *batch, T, N, _ = q.shape
    q, k, v = map(wide, (q, k, v))
    t = form.terms(q, k, **gates, **learned)
    if t.log_weight is not None:
        k_weighted = t.k * jnp.exp(t.log_weight - t.log_weight.max())[..., None]
        t = type(t)(t.q, k_weighted)
    first = lambda x: None if x is None else jnp.moveaxis(to_heads(x, N, -2), len(batch), 0)
    none = jnp.zeros((1,) * len(batch) + (1, 1, 1), q.dtype)  # 64 bits by default, under x64
    g = none if t.log_decay is None else t.log_decay
    g = jnp.broadcast_to(g, (*batch, T, *g.shape[-2:]))
    rows = tuple(map(first, (t.q, t.k, v, jnp.maximum(g, FLOOR), t.erase, t.remove)))

    def token(carry, row):
        S, z = carry
        q, k, v, g, erase, remove = row
        outer = lambda key, value: key[..., :, None] * value[..., None, :]
        read = lambda row, S: jnp.einsum("...m,...md->...d", row, S)
        shrunk, norm = S * jnp.exp(g)[..., None], z * jnp.exp(g)
        if erase is None:
            after = shrunk + outer(k, v)
        elif remove is None:
            after = shrunk + outer(k, v - read(erase, shrunk))
        else:
            after = shrunk - outer(remove, read(erase, S)) + outer(k, v)
        norm = norm + k
        out = read(q, S if form.reads_before else after)
        if form.normalised:
            out = divide(out, (q * norm).sum(-1), form.floor)
        return (after, norm), out

    M, D = t.q.shape[-1], v.shape[-1]
    start = jnp.zeros((*batch, N, M, D), q.dtype), jnp.zeros((*batch, N, M), q.dtype)
    out = jnp.moveaxis(jax.lax.scan(token, start, rows)[1], 0, len(batch))
    if form.adds_own:
        out = out + form.own(q, k, **gates, **learned)[..., None] * to_heads(v, N, -2)
    return out
