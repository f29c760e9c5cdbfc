"""Attention with its weights, as plain functions of arrays: one head, and many heads.

`attend` is any function of (q, k, v, *, mask, bias): `attn.window_attention` with its settings
bound by `functools.partial`, or a mechanism with its learned arrays.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import is_floats
from attn._settings import check_count
from attn._wide import wide
from attn.biases import ArrayBias, Bias, as_bias
from attn.dense.dot_product import dot_product_attention
from attn.masks import FULL, Mask


def single_head(
    x: Float[Array, "*B T W"],
    wq: Float[Array, "W H"],
    wk: Float[Array, "C H"],
    wv: Float[Array, "C D"],
    wo: Float[Array, "D W"],
    *,
    context: Float[Array, "*B S C"] | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B 1 #T #S"] | None = None,
    attend: Callable = dot_product_attention,
) -> Float[Array, "*B T W"]:
    """attend(x W_q, c W_k, c W_v) W_o, c the context or x itself: one head of attention.

    Raises ValueError or TypeError for weights that do not fit, naming them.
    """
    _check(x, wq, wk, wv, wo, 1, None, context)
    c = x if context is None else context
    q, k, v = (y[..., None, :] for y in (x @ wq, c @ wk, c @ wv))  # [*B, T, 1, H]
    return attend(q, k, v, mask=mask, bias=bias)[..., 0, :] @ wo


def multi_head(
    x: Float[Array, "*B T W"],
    wq: Float[Array, "W NH"],
    wk: Float[Array, "C KH"],
    wv: Float[Array, "C KD"],
    wo: Float[Array, "ND W"],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    context: Float[Array, "*B S C"] | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    attend: Callable = dot_product_attention,
) -> Float[Array, "*B T W"]:
    """The sum over heads of `single_head` (Vaswani et al. 2017), with the heads' weights side by
    side: one matrix product each for all queries, keys, values and outputs.

    `num_kv_heads` K < N is grouped-query, 1 multi-query attention: head n uses columns n of W_q and
    n K / N of W_k and W_v. Raises ValueError or TypeError for weights that do not fit.
    """
    N, K = _check(x, wq, wk, wv, wo, num_heads, num_kv_heads, context)
    c = x if context is None else context
    heads = lambda y, n: y.reshape(*y.shape[:-1], n, y.shape[-1] // n)
    out = attend(heads(x @ wq, N), heads(c @ wk, K), heads(c @ wv, K), mask=mask, bias=bias)
    return out.reshape(*out.shape[:-2], wo.shape[0]) @ wo


def multi_head_by_head(
    x: Float[Array, "*B T W"],
    wq: Float[Array, "W NH"],
    wk: Float[Array, "C KH"],
    wv: Float[Array, "C KD"],
    wo: Float[Array, "ND W"],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    context: Float[Array, "*B S C"] | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    attend: Callable = dot_product_attention,
) -> Float[Array, "*B T W"]:
    """`multi_head` as its definition: a loop over heads, each with its own slices of the weights,
    for reading and for testing. A bias is drawn whole, O(T S) memory.

    Raises NotImplementedError for a mechanism that distinguishes heads by their index or mixes them
    (see `Mechanism.heads_alike`), of which one head alone would differ, and for dropout, of other
    weights in each head; a function of your own says so by an attribute of that name: False, or a
    function of the settings bound by `functools.partial`.
    """
    _check_alike(attend)
    N, K = _check(x, wq, wk, wv, wo, num_heads, num_kv_heads, context)
    columns = lambda w, n, i: jnp.split(w, n, axis=1)[i]
    c = x if context is None else context

    def head(n):
        k = n * K // N
        w = columns(wq, N, n), columns(wk, K, k), columns(wv, K, k), jnp.split(wo, N)[n]
        of_head = _of_head(bias, n, x, c, N)
        return single_head(x, *w, context=context, mask=mask, bias=of_head, attend=attend)

    each = [head(n) for n in range(N)]
    return sum(map(wide, each)).astype(each[0].dtype)


def _check_alike(attend):
    settings = {}
    while isinstance(attend, functools.partial):
        settings = attend.keywords | settings  # the outer partial's settings win
        attend = attend.func
    alike = getattr(attend, "heads_alike", True)
    alike = alike(**settings) if callable(alike) else alike
    rate = settings.get("dropout_rate", getattr(attend, "dropout_rate", 0.0))
    drops = rate != 0 and settings.get("dropout_key") is not None  # other weights in each head
    if drops or not alike:
        name = getattr(attend, "name", None) or attend.__name__
        raise NotImplementedError(
            f"attend: {name} does not treat all heads alike, so one alone is not the same; use "
            "multi_head, which has them side by side"
        )


def _of_head(bias, n, x, c, N):
    """The bias of head n alone, [*B or 1, 1, T, S]."""
    bias = jax.tree.map(wide, as_bias(bias))  # as many heads at once have it: distances are exact
    if bias is None:
        return None
    T, S = x.shape[-2], c.shape[-2]
    bias.check(x.shape[:-2], N, T, S)
    values = bias.array(T, S)
    head = 0 if values.shape[-3] == 1 else n
    batch = values.shape[:-3] or (1,) * (x.ndim - 2)
    return ArrayBias(values[..., head : head + 1, :, :].reshape(*batch, 1, T, S))


def _check(x, wq, wk, wv, wo, num_heads, num_kv_heads, context) -> tuple[int, int]:
    """(N, K) of arguments that fit together. Raises ValueError or TypeError naming one that does
    not."""
    check_count("num_heads", num_heads)
    N, K = num_heads, num_heads if num_kv_heads is None else num_kv_heads
    check_count("num_kv_heads", K)
    if N % K:
        raise ValueError(f"num_kv_heads: expected a divisor of num_heads {N}, got {K}")
    named = {"x": x, "wq": wq, "wk": wk, "wv": wv, "wo": wo}
    if context is not None:
        named["context"] = context
    for name, array in named.items():
        if not is_floats(array):
            got = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{name}: expected a float array, got {got}")
        want, got = (jax.dtypes.canonicalize_dtype(y.dtype) for y in (x, array))
        if want != got:
            raise TypeError(f"{name}: expected x's dtype {want}, got {got}; cast one")
        if array.ndim < 2 or (name.startswith("w") and array.ndim != 2):
            axes = "2 axes" if name.startswith("w") else "at least 2 axes [*B, length, width]"
            raise ValueError(f"{name}: expected {axes}, got {list(array.shape)}")
    W, C = x.shape[-1], (x if context is None else context).shape[-1]
    if context is not None and context.shape[:-2] != x.shape[:-2]:
        want = [*x.shape[:-2], "S", "C"]
        raise ValueError(f"context: expected {want} to go with x, got {list(context.shape)}")

    def expect(name, w, axis, size, why):
        if w.shape[axis] != size:
            raise ValueError(f"{name}: expected {size} {why}, got {list(w.shape)}")

    expect("wq", wq, 0, W, "rows, the width of x")
    for name, w in (("wk", wk), ("wv", wv)):
        expect(name, w, 0, C, "rows, the width of " + ("x" if context is None else "context"))
    for name, w, heads in (("wq", wq, N), ("wk", wk, K), ("wv", wv, K)):
        if w.shape[1] % heads:
            raise ValueError(f"{name}: expected columns for {heads} heads, got {list(w.shape)}")
    H, D = wq.shape[1] // N, wv.shape[1] // K
    expect("wk", wk, 1, K * H, f"columns, {K} heads of width {H} as in wq")
    expect("wo", wo, 0, N * D, f"rows, {N} heads of width {D} as in wv")
    expect("wo", wo, 1, W, "columns, the width of x")
    return N, K
