"""What all variants share: the O(T S) definition, and the isolation of NaN."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attn._arrays import check_floats
from attn._axes import aligned
from attn._dropout import Dropout
from attn._inputs import check_qkv
from attn._settings import check_cap, is_number
from attn._wide import wide
from attn.biases import Bias
from attn.masks import Mask


def isolate(x: Float[Array, "*B S K H"]) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K"]]:
    """x with every row that holds a NaN or Inf set to 0, and the poison: NaN there, else 0.

    Adding the poison to a row's scores makes exactly the queries that see the row NaN; the
    zeroed row keeps 0 * NaN from reaching all the others.
    """
    fine = jnp.isfinite(x).all(-1)
    return jnp.where(fine[..., None], x, 0), jnp.where(fine, 0, jnp.nan).astype(jnp.result_type(x))


def dots(q: Float[Array, "*B T N H"], k: Float[Array, "*#B S K H"]) -> Float[Array, "*B N T S"]:
    """q . k for every pair, each group of N / K query heads with its own key head.

    Heads first, and the group's queries in one product: as one einsum of q and k, XLA's CPU backend
    takes 1.5 times as long at 1,024 tokens and 4 heads of 64, and 4 times for `mix`.
    """
    *batch, T, N, H = q.shape
    S, K = k.shape[-3:-1]
    q = jnp.swapaxes(q, -3, -2).reshape(*batch, K, N // K * T, H)
    return (q @ jnp.moveaxis(k, -3, -1)).reshape(*batch, N, T, S)


def scores(q: Float[Array, "*B T N H"], k: Float[Array, "*B S K H"]) -> Float[Array, "*B N T S"]:
    """`dots`, where a query or key that is not finite makes its own row or column NaN."""
    q, q_poison = isolate(q)
    k, k_poison = isolate(k)
    q_poison, k_poison = (jnp.moveaxis(x, -1, -2) for x in (q_poison, k_poison))
    k_poison = jnp.repeat(k_poison, q.shape[-2] // k.shape[-2], axis=-2)
    return dots(q, k) + k_poison[..., None, :] + q_poison[..., None]


def marked(q: Float[Array, "*B T N H"]) -> Float[Array, "*B T N H"]:
    """q with NaN for Inf: else all scores of such a row may be -inf, and its output 0 as if it saw
    nothing. One NaN in q makes all its scores NaN; to look for Inf along rows is slower."""
    return jnp.where(jnp.isinf(q), jnp.nan, q)


def isolate_rows(
    s: Float[Array, "*B T S"], seen: Bool[Array, "*#B #T #S"]
) -> tuple[Float[Array, "*B T S"], Float[Array, "*B T 1"]]:
    """Scores with 0 in every row that sees one that is NaN or too large for its dtype, and the
    poison: NaN there, else 0. From an unused row 0 * NaN would reach every gradient.
    """
    lost = (seen & ~(s < jnp.inf)).any(-1, keepdims=True)
    return jnp.where(lost, 0, s), jnp.where(lost, jnp.nan, 0).astype(s.dtype)


def masked_softmax(
    s: Float[Array, "*B N T S"],
    seen: Bool[Array, "*#B #N #T #S"],
    sinks: Float[Array, " N"] | None = None,
) -> Float[Array, "*B N T S"]:
    """Softmax over the seen keys of each row; exactly 0 where unseen and for rows that see none. A
    sink is one more logit in each row of its head, whose weight is discarded."""
    s, seen = aligned(s, seen)
    w, poison = isolated_softmax(s, seen, sinks)
    return jnp.where(seen, w + poison, 0)


def isolated_softmax(
    s: Float[Array, "*B N T S"],
    seen: Bool[Array, "*#B #N #T #S"],
    sinks: Float[Array, " N"] | None = None,
) -> tuple[Float[Array, "*B N T S"], Float[Array, "*B N T 1"]]:
    """`masked_softmax`, finite, and the poison of `isolate_rows`, to be added to the output: XLA's
    max and exp on a CPU can lose NaN (exp(nan) is 1 in some fusions)."""
    s, seen = aligned(s, seen)
    s, poison = isolate_rows(s, seen)
    # -inf alone would make a row that sees nothing NaN: its maximum is set to 0 instead
    top = jnp.max(jnp.where(seen, s, -jnp.inf), axis=-1, keepdims=True, initial=-jnp.inf)
    if sinks is not None:
        _, sinks = aligned(s, sinks.astype(s.dtype)[:, None, None])
        top = jnp.maximum(top, sinks)
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
    e = jnp.where(seen, jnp.exp(jnp.where(seen, s - top, 0)), 0)
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        # a row that sees nothing is 0 whatever its sink, and gives it no gradient
        total = jnp.where(total == 0, 0, total + jnp.exp(sinks - top))
    # hidden also from the gradient, as large as the hidden values: its sum would make the row's NaN
    return jnp.where(seen, e / jnp.where(total == 0, 1, total), 0), poison


def mix(w: Float[Array, "*#B N T S"], v: Float[Array, "*B S K D"]) -> Float[Array, "*B T N D"]:
    """w v per head, each group of N / K heads with its own values."""
    *batch, N, T, S = w.shape
    K, D = v.shape[-2:]
    out = w.reshape(*batch, K, N // K * T, S) @ jnp.swapaxes(v, -3, -2)
    return jnp.swapaxes(out.reshape(*out.shape[:-3], N, T, D), -3, -2)


def apply_weights(
    w: Float[Array, "*B N T S"], v: Float[Array, "*B S K D"], seen: Bool[Array, "*#B #N #T #S"]
) -> Float[Array, "*B T N D"]:
    """`mix`, where a NaN or Inf in v reaches only the queries that see it."""
    w, seen = aligned(w, seen)
    v, poison = isolate(v)
    poison = jnp.repeat(jnp.moveaxis(poison, -1, -2), w.shape[-3] // v.shape[-2], axis=-2)
    return mix(w + jnp.where(seen, poison[..., None, :], 0), v)


def seen_array(mask: Mask, T: int, S: int) -> Bool[Array, "*B 1 T S"]:
    """The whole mask as an array, with an axis for heads."""
    return jnp.asarray(mask.array(T, S))[..., None, :, :]


def dense_weights(
    q, k, *, mask: Mask, bias=None, scale=None, logit_cap: float | None = None, sinks=None
) -> Float[Array, "*B N T S"]:
    """softmax(cap(scale q k^T) + bias) over the seen keys, as a whole matrix: O(T S) memory."""
    mask, bias = check_qkv(q, k, k, mask, bias)
    check_sinks(sinks, q)
    return masked_softmax(*dense_scores(q, k, mask, bias, scale, logit_cap), sinks)


def dense_scores(q, k, mask, bias, scale, logit_cap):
    """The scores [*B, N, T, S] and the mask as an array, for checked q, k, mask and bias."""
    check_cap(logit_cap)
    s = scores(scaled(q, scale), wide(k))
    if logit_cap is not None:
        s = logit_cap * jnp.tanh(s / logit_cap)
    s = biased(s, bias)
    return aligned(s, seen_array(mask, *s.shape[-2:]))


def biased(s: Float[Array, "*B N T S"], bias: Bias | None) -> Float[Array, "*B N T S"]:
    """The scores plus the whole bias."""
    if bias is None:
        return s
    return jnp.add(*aligned(s, bias.array(*s.shape[-2:]).astype(s.dtype)))


def attend_materialized(
    s: Float[Array, "*B N T S"],
    seen: Bool[Array, "*#B #N #T #S"],
    v: Float[Array, "*B S K D"],
    *,
    sinks=None,
    dropout: Dropout | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(s) v over the seen keys. Rows that see a NaN, in a score or a value, are computed
    with zeros and made NaN at the end: 0 * NaN in between would reach every gradient."""
    s, seen = aligned(s, seen)
    v, poison = isolate(wide(v))
    poison = jnp.repeat(jnp.moveaxis(poison, -1, -2), s.shape[-3] // v.shape[-2], axis=-2)
    w, lost = isolated_softmax(s + poison[..., None, :].astype(s.dtype), seen, sinks)
    w = w if dropout is None else dropout.of_scores(w)
    out = mix(w, v)
    return out + jnp.swapaxes(lost, -3, -2).astype(out.dtype)


def dense_attention(
    q,
    k,
    v,
    *,
    mask: Mask,
    bias=None,
    scale=None,
    logit_cap: float | None = None,
    sinks=None,
    dropout: Dropout | None = None,
) -> Float[Array, "*B T N D"]:
    """`dense_weights` applied to v, in at least float32: the reference of every softmax variant."""
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_sinks(sinks, q)
    s, seen = dense_scores(q, k, mask, bias, scale, logit_cap)
    return attend_materialized(s, seen, v, sinks=sinks, dropout=dropout)


def check_sinks(sinks, q) -> None:
    """Raise TypeError for anything but an array of floats, ValueError unless there is one per
    head."""
    if sinks is None:
        return
    check_floats(sinks=sinks)
    if sinks.shape != q.shape[-2:-1]:
        raise ValueError(f"sinks: expected {list(q.shape[-2:-1])}, got {list(sinks.shape)}")


def number_of(scale: float | Array | None, H: int) -> float | None:
    """The scale as a number that is known at trace time, 1 / sqrt(H) unless given; None for an
    array. Raises ValueError for a number that is not finite."""
    if scale is None:
        return H**-0.5
    if not is_number(scale):
        return None
    if not np.isfinite(scale):
        raise ValueError(f"scale: expected a finite number, got {scale}")
    return float(scale)


def check_scale(scale, N: int) -> None:
    """Raise TypeError for anything but an array, ValueError for another shape than [] and [N]."""
    if not hasattr(scale, "dtype"):
        raise TypeError(f"scale: expected a number or an array, got {scale!r}")
    if jnp.shape(scale) not in ((), (N,)):
        raise ValueError(f"scale: expected a number or shape [{N}], got {list(jnp.shape(scale))}")


def scaled(q: Float[Array, "*B T N H"], scale: float | Array | None) -> Float[Array, "*B T N H"]:
    """q in at least float32 times `scale`: 1 / sqrt(H) unless given, one number or one per head.

    Raises ValueError for a number that is not finite and for an array of another shape, TypeError
    for what is neither.
    """
    q = wide(q)
    N, H = q.shape[-2:]
    number = number_of(scale, H)
    if number is not None:
        return marked(q) * number
    check_scale(scale, N)
    q, poison = isolate(q)  # from an unused row, 0 * NaN would reach a learned scale
    return jnp.multiply(*aligned(q, jnp.asarray(scale, q.dtype).reshape(-1, 1))) + poison[..., None]
