"""What all variants share: the argument check, the O(T S) definition, and isolation of NaN."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attn._arrays import is_floats
from attn._axes import aligned
from attn._dropout import Dropout
from attn._numbers import is_integer, is_number
from attn.biases import Bias, as_bias
from attn.masks import FULL, Mask
from attn.masks.language import spelled


def check_qkv(q, k, v, mask: Mask, bias=None) -> tuple[Mask, Bias | None]:
    """Refuse what is not q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D]; bind mask and bias.

    Raises TypeError for dtypes and kinds, ValueError for shapes, naming the argument.
    """
    # NumPy's float64 becomes float32 unless x64 is on, in q, k and v at different steps
    held = jax.dtypes.canonicalize_dtype
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            raise TypeError(f"{name}: expected an array, got {type(x).__name__}")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{name}: expected a float dtype, got {x.dtype}; cast it first")
        if held(x.dtype) != held(q.dtype):
            raise TypeError(f"{name}: expected q's dtype {q.dtype}, got {x.dtype}; cast one")
        if x.ndim < 3:
            raise ValueError(
                f"{name}: expected at least 3 axes [*B, length, heads, width], got {list(x.shape)}"
            )
    *batch, T, N, H = q.shape
    S, K = k.shape[-3:-1]
    if list(k.shape) != [*batch, S, K, H]:
        raise ValueError(f"k: expected {[*batch, 'S', 'K', H]} to go with q, got {list(k.shape)}")
    if list(v.shape[:-1]) != [*batch, S, K]:
        raise ValueError(f"v: expected {[*batch, S, K, 'D']} to go with k, got {list(v.shape)}")
    if K == 0 or N == 0 or N % K:
        raise ValueError(f"k: its heads must divide q's {N} heads, got {K}")
    if H == 0:
        raise ValueError("q: expected a head width of at least 1, got 0")
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask: expected a Mask from attn.masks, got {type(mask).__name__}; wrap a boolean "
            "array as Array(bool[*B, T, S]), or Padding(keys=bool[*B, S])"
        )
    if not dataclasses.is_dataclass(mask):
        name = type(mask).__name__
        raise TypeError(f"mask: expected a frozen class, got {name}; put @attn.masks.term on it")
    mask = mask.sized(T, S)
    mask.check(tuple(batch), T, S)
    # in float32 its gradient, a sum over the whole batch, is not lost to rounding
    bias = jax.tree.map(wide, as_bias(bias))
    if bias is not None:
        bias.check(tuple(batch), N, T, S)
    return mask, bias


def refuse_rest(name: str, rest: Mask, bias: Bias | None, honours) -> None:
    """Raise NotImplementedError naming what is left of a mask, or a bias, that `name` cannot do."""
    can = ", ".join(kind.__name__ for kind in honours)
    can = f"{can}, one of each, joined by &" if can else "none"
    if rest != FULL:
        raise NotImplementedError(
            f"mask: {name} cannot honour {spelled(rest)} here (it honours {can}); "
            "use softmax, which honours every mask"
        )
    if bias is not None:
        raise NotImplementedError(
            f"bias: {name} has no scores to add a {type(bias).__name__} to; use softmax"
        )


def wide_dtype(dtype) -> jnp.dtype:
    """At least float32: statistics are never kept in a narrow type. NumPy's float64 is float32
    unless x64 is on."""
    held = jax.dtypes.canonicalize_dtype(dtype)
    return held if held == jnp.float64 else jnp.dtype(jnp.float32)


def wide(x: Array) -> Array:
    """x in its `wide_dtype`."""
    x = jnp.asarray(x)
    return x.astype(wide_dtype(x.dtype))


def inverse(total: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / total of sums of weights; 0 for those of none, and of NaN."""
    return jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)


def finite(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x, and 0 where it is NaN or Inf."""
    return jnp.where(jnp.isfinite(x), x, 0)


def isolate(x: Float[Array, "*B S K H"]) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K"]]:
    """x with every row that holds a NaN or Inf set to 0, and the poison: NaN there, else 0.

    Adding the poison to a row's scores makes exactly the queries that see the row NaN; the
    zeroed row keeps 0 * NaN from reaching all the others.
    """
    fine = jnp.isfinite(x).all(-1)
    return jnp.where(fine[..., None], x, 0), jnp.where(fine, 0, jnp.nan).astype(jnp.result_type(x))


def dots(q: Float[Array, "*B T N H"], k: Float[Array, "*#B S K H"]) -> Float[Array, "*B N T S"]:
    """q . k for every pair, each group of N / K query heads with its own key head.

    Heads first, and the group's queries in one product: as an einsum of what is given, XLA's CPU
    backend takes 1.5 times as long at 1,024 tokens and 4 heads of 64, and 4 times for `mix`.
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


def isolate_rows(
    s: Float[Array, "*B T S"], seen: Bool[Array, "*#B #T #S"]
) -> tuple[Float[Array, "*B T S"], Float[Array, "*B T 1"]]:
    """Scores with 0 in every row that sees one that is NaN or too large for its dtype, and the
    poison: NaN there, else 0. In a row that nobody asks about 0 * NaN would reach every gradient.
    """
    lost = (seen & ~(s < jnp.inf)).any(-1, keepdims=True)
    return jnp.where(lost, 0, s), jnp.where(lost, jnp.nan, 0).astype(s.dtype)


def masked_softmax(
    s: Float[Array, "*B N T S"],
    seen: Bool[Array, "*#B #N #T #S"],
    sinks: Float[Array, " N"] | None = None,
) -> Float[Array, "*B N T S"]:
    """Softmax over the seen keys of each row; exactly 0 where unseen and for rows that see none.
    A sink is one logit more in each row of its head, whose weight goes nowhere."""
    s, seen = aligned(s, seen)
    w, poison = isolated_softmax(s, seen, sinks)
    return jnp.where(seen, w + poison, 0)


def isolated_softmax(
    s: Float[Array, "*B N T S"],
    seen: Bool[Array, "*#B #N #T #S"],
    sinks: Float[Array, " N"] | None = None,
) -> tuple[Float[Array, "*B N T S"], Float[Array, "*B N T 1"]]:
    """`masked_softmax`, finite, and the poison of `isolate_rows`, to be added to what the weights
    make: XLA's max and exp on a CPU can lose NaN (exp(nan) is 1 in some fusions)."""
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
    # hidden also from the gradient, as large as the values there: its sum would make the row's NaN
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
    """The mask drawn whole, with an axis for heads."""
    return jnp.asarray(mask.array(T, S))[..., None, :, :]


def dense_weights(
    q, k, *, mask: Mask, bias=None, scale=None, logit_cap: float | None = None, sinks=None
) -> Float[Array, "*B N T S"]:
    """softmax(cap(scale q k^T) + bias) over the seen keys, drawn whole: O(T S) memory."""
    mask, bias = check_qkv(q, k, k, mask, bias)
    return masked_softmax(*dense_scores(q, k, mask, bias, scale, logit_cap), sinks)


def dense_scores(q, k, mask, bias, scale, logit_cap):
    """The scores [*B, N, T, S] and where they are seen, of checked q, k, mask and bias."""
    check_cap(logit_cap)
    s = scores(scaled(q, scale), wide(k))
    if logit_cap is not None:
        s = logit_cap * jnp.tanh(s / logit_cap)
    s = biased(s, bias)
    return aligned(s, seen_array(mask, *s.shape[-2:]))


def biased(s: Float[Array, "*B N T S"], bias: Bias | None) -> Float[Array, "*B N T S"]:
    """The scores with the bias, drawn whole."""
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
    """softmax(s) v over the seen keys. Rows that see a NaN, in a score or a value, are worked out
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
    s, seen = dense_scores(q, k, mask, bias, scale, logit_cap)
    return attend_materialized(s, seen, v, sinks=sinks, dropout=dropout)


def softmax_part(
    s: Float[Array, "*B N T S"], seen: Bool[Array, "*#B #N #T S"], v: Float[Array, "*B S K D"]
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(s) v over the seen keys of a part, and its log-sum-exp: what `merged` takes. q, k
    and v were finite: here nothing is isolated."""
    w, lse = part_weights(s, seen)
    return mix(w, v), jnp.swapaxes(lse, -1, -2)


def part_weights(s: Float[Array, "*B S"], seen: Bool[Array, "*#B S"]):
    """softmax(s) over the seen keys of a part, and its log-sum-exp [*B]: -inf where none is, NaN
    where a score is too large for its dtype (the softmax is then that of equal scores)."""
    s = jnp.where(s < jnp.inf, s, jnp.inf)  # or NaN, as the difference of two
    top = jnp.where(seen, s, -jnp.inf).max(-1, keepdims=True)
    lost = top == jnp.inf
    top = jax.lax.stop_gradient(jnp.where(jnp.isinf(top), 0, top))
    e = jnp.where(seen, jnp.exp(jnp.where(seen & ~lost, s - top, 0)), 0)
    total = e.sum(-1, keepdims=True)
    none = total == 0
    total = jnp.where(none, 1, total)
    lse = jnp.where(none, -jnp.inf, jnp.log(total) + top)
    return jnp.where(seen, e / total, 0), jnp.where(lost, jnp.nan, lse)[..., 0]


def largest(x: Float[Array, "*L H"]) -> Float[Array, "*L 1"]:
    """What to divide each row by: its largest number, without gradient, and no larger than has an
    inverse, for XLA multiplies by that, and that of 1e38 is 0 to a CPU."""
    top = jnp.abs(x).max(-1, keepdims=True, initial=0)
    return jax.lax.stop_gradient(jnp.minimum(top, float(jnp.finfo(x.dtype).max) / 8))


def over_root(x: Float[Array, "*L H"], total) -> Float[Array, "*L H"]:
    """x / sqrt(total(x^2) + 1e-6), `total` jnp.sum or jnp.mean over the last axis; 0 stays 0."""
    # as parts of the largest: in float32 the square of 1e20 is infinite, and its unit would be 0
    top = jnp.maximum(largest(x), 1)
    x = x / top
    return x * jax.lax.rsqrt(total(jnp.square(x), -1, keepdims=True) + 1e-6 / (top * top))


def check_count(name: str, value, *, least: int = 1) -> None:
    """Raise ValueError unless `value` is an integer from `least` to 2^30."""
    if not is_integer(value) or not least <= value <= 2**30:
        raise ValueError(f"{name}: expected an integer from {least} to 2^30, got {value!r}")


def check_state(state, kind: type, q=None) -> None:
    """Raise TypeError unless `state` is of the kind that a variant's `init_state` makes, and, given
    the tokens q, as wide as those: 16 and 32 bits go together, and 64 with 64 alone."""
    if not isinstance(state, kind):
        raise TypeError(f"state: expected that of `init_state`, got {type(state).__name__}")
    for x in filter(is_floats, jax.tree.leaves(state) if is_floats(q) else ()):
        if wide_dtype(x.dtype) != wide_dtype(q.dtype):
            raise TypeError(
                f"state: expected that of `init_state` with dtype={jnp.dtype(q.dtype).name!r}, as "
                f"the tokens are, got {x.dtype}"
            )


def check_cap(logit_cap: float | None) -> None:
    """Raise ValueError unless it is None or a positive number."""
    if logit_cap is not None and not (is_number(logit_cap) and 0 < logit_cap < 1e30):
        raise ValueError(f"logit_cap: expected a positive number or None, got {logit_cap}")


def check_flags(record) -> None:
    """Raise TypeError unless each field of a dataclass that is declared bool is one."""
    for field in dataclasses.fields(record):
        if field.type is bool:
            check_flag(field.name, getattr(record, field.name))


def check_flag(name: str, value) -> None:
    """Raise TypeError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, got {value!r}")


def check_choice(name: str, value, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_block(block: int | tuple[int, int] | None) -> None:
    """Raise ValueError unless `block` is None, a positive integer or two."""
    pair = isinstance(block, tuple) and len(block) == 2
    for size in block if pair else (block,) * (block is not None):
        check_count("block", size)


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


def scaled(q: Float[Array, "*B T N H"], scale: float | Array | None) -> Float[Array, "*B T N H"]:
    """q in at least float32 times `scale`: 1 / sqrt(H) unless given, one number or one a head.

    Raises ValueError for a number that is not finite and for an array of another shape, TypeError
    for what is neither.
    """
    q = wide(q)
    N, H = q.shape[-2:]
    number = number_of(scale, H)
    if number is not None:
        return q * number
    if not hasattr(scale, "dtype"):
        raise TypeError(f"scale: expected a number or an array, got {scale!r}")
    if jnp.shape(scale) not in ((), (N,)):
        raise ValueError(f"scale: expected a number or shape [{N}], got {list(jnp.shape(scale))}")
    q, poison = isolate(q)  # of a row that nobody asks about, 0 * NaN would reach a learned scale
    return jnp.multiply(*aligned(q, jnp.asarray(scale, q.dtype).reshape(-1, 1))) + poison[..., None]
