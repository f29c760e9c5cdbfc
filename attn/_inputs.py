"""Checks of what every variant is called with: q, k, v, a mask and a bias that fit, and a state."""

import jax
import jax.numpy as jnp

from attn._arrays import is_array, is_floats
from attn._wide import wide, wide_dtype
from attn.biases import Bias, as_bias
from attn.masks import FULL, Mask
from attn.masks.language import spelled
from attn.masks.record import check_frozen


def check_qkv(q, k, v, mask: Mask, bias=None) -> tuple[Mask, Bias | None]:
    """Refuse all but q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D]; bind mask and bias.

    Raises TypeError for dtypes and kinds, ValueError for shapes, naming the argument.
    """
    # NumPy's float64 becomes float32 unless x64 is on, in q, k and v at different steps
    held = jax.dtypes.canonicalize_dtype
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not is_array(x):
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
    if not isinstance(T, int):  # what runs depends on it
        raise ValueError(
            f"q: expected a known length, got {list(q.shape)}; jax.export may leave open the batch"
        )
    if list(k.shape) != [*batch, S, K, H]:
        raise ValueError(f"k: expected {[*batch, 'S', 'K', H]} to go with q, got {list(k.shape)}")
    if list(v.shape[:-1]) != [*batch, S, K]:
        raise ValueError(f"v: expected {[*batch, S, K, 'D']} to go with k, got {list(v.shape)}")
    if K == 0 or N == 0 or N % K:
        raise ValueError(f"k: its heads must divide q's {N} heads, got {K}")
    if H == 0:
        raise ValueError("q: expected a head width of at least 1, got 0")
    check_mask(mask)
    mask = mask.sized(T, S)
    mask.check(tuple(batch), T, S)
    # in float32 its gradient, a sum over the whole batch, is not lost to rounding
    bias = jax.tree.map(wide, as_bias(bias))
    if bias is not None:
        bias.check(tuple(batch), N, T, S)
    return mask, bias


def check_mask(mask) -> None:
    """Raise TypeError for what is no term of `attn.masks`, nor one's own by `attn.masks.term`."""
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask: expected a Mask from attn.masks, got {type(mask).__name__}; wrap a boolean "
            "array as Array(bool[*B, T, S]), or Padding(keys=bool[*B, S])"
        )
    check_frozen("mask", mask, "masks.term")


def check_tokens(q, k) -> None:
    """Raise ValueError unless there are as many keys as queries, of the same tokens."""
    T, S = q.shape[-3], k.shape[-3]
    if T != S:
        raise ValueError(f"k: expected as many tokens as q, {T}, got {S}")


def refuse_rest(name: str, rest: Mask, bias: Bias | None, honours) -> None:
    """Raise NotImplementedError naming the rest of a mask, or a bias, that `name` cannot honour."""
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


def check_kept(got: int, want: int, what: str = "tokens") -> None:
    """Raise ValueError for a state that keeps other than `want` of something: it is from a variant
    with other settings, whose sizes would be taken for this one's."""
    if got != want:
        raise ValueError(f"state: expected that of `init_state`, of {want} {what}, got {got}")
