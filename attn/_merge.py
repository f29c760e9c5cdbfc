"""Softmax over disjoint parts of the keys, merged to that over all of them by log-sum-exps."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._core import mix
from attn._varying import vary
from attn._wide import finite, wide


def merged(parts):
    """The output and log-sum-exp over all keys from those over disjoint parts of them."""
    outs, lses = vary(tuple(zip(*parts)))  # alike, for their gradients under shard_map
    out, lse = _jitted(tuple(map(wide, outs)), tuple(map(wide, lses)))
    return out.astype(outs[0].dtype), lse.astype(jnp.result_type(*lses))


@jax.custom_vjp
def _merged(outs, lses):
    return _merged_forward(outs, lses)[0]


# does not call `_merged`: forward over reverse differentiates this code
def _merged_forward(outs, lses):
    shares, lse, lost = _shares(lses)
    out = sum(share[..., None] * finite(o) for share, o in zip(shares, outs))
    # the output of a part that a row does not see is not used, and may be anything
    fine = (jnp.isfinite(o) | (part == -jnp.inf)[..., None] for o, part in zip(outs, lses))
    fine = functools.reduce(jnp.logical_and, fine)
    out = jnp.where(fine & ~lost[..., None], out, jnp.nan)
    return (out, lse), (outs, lses, out)


def _shares(lses):
    """The share of each part in each row, the log-sum-exp over all parts, and the rows that are
    NaN, where shares are 0: 0 * NaN would reach what they saw."""
    lost = functools.reduce(jnp.logical_or, map(jnp.isnan, lses))
    lses = [jnp.where(lost, -jnp.inf, lse) for lse in lses]
    # finite where nothing is seen in any part: -inf - -inf is nan
    top = functools.reduce(jnp.maximum, lses, jnp.finfo(lses[0].dtype).min)
    top = jax.lax.stop_gradient(top)
    weights = [jnp.exp(lse - top) for lse in lses]
    total = sum(weights)
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(total))
    shares = [w / jnp.where(total == 0, 1, total) for w in weights]
    return shares, jnp.where(lost, jnp.nan, lse), lost


def _merged_backward(saved, cotangents):
    """By hand for its sums over D, as products with ones: XLA's own take 20 times as long."""
    (outs, lses, out), (d_out, d_lse) = saved, cotangents
    along = lambda x: (d_out * finite(x)) @ jnp.ones(x.shape[-1], x.dtype)
    shares, whole = _shares(lses)[0], along(out)
    d_outs = tuple(d_out * share[..., None] for share in shares)
    d_lses = tuple(share * (along(o) - whole + d_lse) for share, o in zip(shares, outs))
    return d_outs, d_lses


_merged.defvjp(_merged_forward, _merged_backward)
_jitted = jax.jit(_merged)  # for calls outside of jit


def softmax_part(
    s: Float[Array, "*B N T S"], seen: Bool[Array, "*#B #N #T S"], v: Float[Array, "*B S K D"]
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(s) v over the seen keys of a part, and its log-sum-exp: what `merged` takes. q, k and
    v must be finite: nothing is isolated here."""
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
