"""What we promise and kernels do not: hidden NaN never shows, queries that see nothing get 0.

A kernel multiplies hidden keys by 0, so a NaN there would show, and gives a query that sees nothing
a mean of values. Here it only runs on finite numbers. Set to 0 are hidden keys, queries that see
nothing, and rows that hold a NaN, an Inf, a query or key beyond 1e18, of which a score may
overflow, or a value beyond 1e36, of which the gradient of a weight may; the queries that see such a
row are made NaN afterwards. They are looked up, O(T S) time, only if there is such a row: the
device decides.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._axes import aligned
from attn._core import isolate
from attn._varying import vary
from attn.kernels.band import Band, split
from attn.kernels.call import Call
from attn.masks import Mask

ROWS = 128  # queries that are looked up at once
LARGEST = 1e18  # of queries and keys: the sum of 256 products of two fits float32
LARGEST_VALUE = 1e36  # so does that of 256 products of a value and a gradient below 1


def _flat(call: Call) -> Call:
    """The call with its batch axes merged into one, B; an array in its mask or bias has B or 1."""
    batch = call.q.shape[:-3]
    merge = lambda x: x.reshape(math.prod(batch), *x.shape[-3:])
    q, k, v = (merge(x) for x in (call.q, call.k, call.v))
    T, S = q.shape[1], k.shape[1]
    bias = None if call.bias is None else call.bias.prepare(batch, T, S, block=(T, S))
    mask = call.mask.merge_batch(batch)
    return dataclasses.replace(call, q=q, k=k, v=v, mask=mask, bias=bias)


def guarded(
    kernel: Callable[[Call, Band, Array, Array, Array], Float[Array, "B T N D"]],
    call: Call,
    rows: Callable[[Band], tuple] = Band.rows,
) -> Float[Array, "*B T N D"]:
    """kernel(call, band, q, k, v) with the call's batch axes merged and its mask as a band. `rows`
    gives, of a band, exactly which queries see a key, and which keys may be seen; None for all."""
    shape, call = (*call.q.shape[:-1], call.v.shape[-1]), _flat(call)
    band = split(call.mask, call.q.shape[1], call.k.shape[1])
    queries, keys = rows(band)
    q, k, v = _shown(call.q, queries), _shown(call.k, keys), _shown(call.v, keys)
    bounded = _bounded(q, LARGEST), _bounded(k, LARGEST), _bounded(v, LARGEST_VALUE)
    (q, bad_q), (k, bad_k), (v, bad_v) = map(isolate, bounded)
    bad_keys = jax.lax.stop_gradient(jnp.isnan(bad_k) | jnp.isnan(bad_v))
    bad = jnp.isnan(bad_q) | _sees(call.mask, bad_keys, call.q.shape[1:3])
    return _shown(_poisoned(kernel(call, band, q, k, v), bad), queries).reshape(shape)


def _shown(x, rows):
    """x where `rows` is True, else 0; likewise its gradient."""
    if rows is None:
        return x
    rows, x = aligned(rows[..., None, None], x)
    return jnp.where(rows, x, 0)


def _bounded(x, largest):
    """NaN where scores or gradients of x may overflow: the kernel's gradients reach all keys."""
    largest = min(largest, float(jnp.finfo(x.dtype).max))
    return jnp.where(jnp.abs(x) > largest, jnp.nan, x).astype(x.dtype)


@jax.custom_vjp
def _poisoned(out, bad):
    return jnp.where(bad[..., None], jnp.nan, out).astype(out.dtype)


def _poisoned_forward(out, bad):
    return _poisoned(out, bad), bad


def _poisoned_backward(bad, d_out):
    # not the 0 that `where` would give: gradients of a loss that is NaN must not look healthy
    return jnp.where(bad[..., None] & (d_out != 0), jnp.nan, d_out).astype(d_out.dtype), None


_poisoned.defvjp(_poisoned_forward, _poisoned_backward)


def _sees(mask: Mask, bad: Bool[Array, "B S K"], size: tuple[int, int]) -> Bool[Array, "B T N"]:
    """Which queries see a bad key of their head."""
    (T, N), (B, S, K) = size, bad.shape
    starts = jnp.arange(0, T, ROWS)

    def look(start):
        seen = mask.at(start + jnp.arange(ROWS)[:, None], jnp.arange(S)[None, :])
        # one boolean mask for the batch or one each; numbers, because matmul counts
        seen = jnp.broadcast_to(seen, (B, ROWS, S)).astype(jnp.float32)
        return seen @ bad.astype(jnp.float32) > 0

    def look_up():
        found = jax.lax.map(look, starts)  # [T / ROWS, B, ROWS, K]
        return jnp.moveaxis(found, 0, 1).reshape(B, -1, K)[:, :T]

    none = lambda: vary(jnp.zeros((B, T, K), bool), bad)  # as what is looked up, under shard_map
    return jnp.repeat(jax.lax.cond(_any(bad), look_up, none), N // K, axis=-1)


@jax.custom_batching.custom_vmap
def _any(x):
    return x.any()


@_any.def_vmap
def _any_in_the_batch(axis_size, in_batched, x):
    # a predicate for each row would make `cond` a `select` that runs both branches
    return _any(x), False
