"""Two attentions in a row: a few learned rows attend to all tokens, then all queries to these."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._blockwise import blockwise
from attn._core import dense_attention, dots, isolated_softmax, masked_softmax
from attn._forms import visited_scores
from attn._tokens import clean, no_output, seen_tokens, to_heads
from attn._wide import wide
from attn.masks import FULL, Padding


def check_rows(name: str, rows: Float[Array, "K P H"], k) -> None:
    """Raise ValueError or TypeError unless these are learned rows for k."""
    check_floats(**{name: rows})
    K, H = k.shape[-2:]
    if rows.ndim != 3 or rows.shape[::2] != (K, H) or rows.shape[1] == 0:
        raise ValueError(f"{name}: expected {[K, 'P', H]}, got {list(rows.shape)}")


def attend(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    rows: Float[Array, "K P H"],
    keys,
    padding: Padding | None,
    *,
    scale: float | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q keys^T / sqrt(H)) h with h = A v, A = softmax(scale rows k^T), and keys
    [*B, K, P, H] = keys(h, A, k), for checked arguments; `scale` is 1 / sqrt(H) unless given.
    O((T + S) P) time and memory."""
    (*batch, T, N, H), S = q.shape, k.shape[-3]
    if 0 in (*batch, T, S):
        return no_output(q, v)
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    (x, q_poison), (k, k_poison), (v, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    rows = rows.astype(x.dtype) * (H**-0.5 if scale is None else scale)
    s = jnp.einsum("kph,...skh->...kps", rows, k)
    w, lost = isolated_softmax(s, seen[..., None, None, :])
    h = jnp.einsum("...kps,...skd->...kpd", w, v)
    tokens_first = lambda x: jnp.swapaxes(x, -3, -2)
    live = asks & seen.any(-1, keepdims=True)
    found = tokens_first(keys(h, w, k)), tokens_first(h)
    # by blocks: the scores of all queries would not fit in the processor's cache
    mask = FULL if padding is None else Padding(queries=live)
    out = blockwise(x, *found, mask, None, scale=None)[0]
    # what is not finite reaches its row and head, through every learned row, at the end: 0 * NaN in
    # between would reach the gradients of rows that no query uses
    poison = (k_poison + v_poison).sum(-2) + lost.sum((-2, -1))
    met = to_heads(poison, N)[..., None, :] + q_poison
    out = out + jax.lax.stop_gradient(met)[..., None]
    return jnp.where(live[..., None, None], out, 0).astype(jnp.result_type(q))


def read_flops(T: int, P: int, N: int, H: int, D: int) -> int:
    """Operations of the second attention."""
    return 2 * visited_scores(FULL, T, P, N) * N * (H + D)


def averaged_keys(h, w, k):
    """Keys averaged as the values are."""
    return jnp.einsum("...kps,...skh->...kph", w, k)


def whole(q, k, v, rows, keys, padding: Padding | None) -> Float[Array, "*B T N D"]:
    """The same by two dense attentions; keys(A, k, v) is [*B, P, K, H]."""
    batch, T, S = q.shape[:-3], q.shape[-3], k.shape[-3]
    asks, seen = seen_tokens(padding, batch, T, S)
    k, v = (jnp.where(seen[..., None, None], wide(x), 0) for x in (k, v))
    rows = jnp.swapaxes(rows, 0, 1).astype(k.dtype)
    rows = jnp.broadcast_to(rows, (*batch, *rows.shape))
    s = dots(rows, k) / q.shape[-1] ** 0.5
    w = masked_softmax(s, seen[..., None, None, :])
    found = dense_attention(rows, k, v, mask=Padding(keys=seen))
    live = asks & seen.any(-1, keepdims=True)
    return dense_attention(wide(q), keys(w, k, v), found, mask=Padding(queries=live))
