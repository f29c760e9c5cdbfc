"""Scores under decay inside a chunk: rows_i . keys_j exp(sum of log_decay after j, up to i).

That sum is added up from its own terms, all of one sign, never as the difference of two running
sums: what follows a gate of -1e4 stays exact, and no exponent is ever positive. Both functions
return

    a        [*B, R, C, C]   the scores, for i >= j
    now      [*B, R, C, M]   the decayed rows, as they read the state before the chunk
    kept     [*B, C, M]      the decayed keys, as they reach the state after it
    total    [*B, M]         the decay of the state; M is 1 for one gate per head

With `own`, rows read after their own token's decay, else before it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attn._axes import aligned
from attn._once import once

# exp of it is 0 in every dtype, and sums of it are finite
FLOOR = -1e9

Scores = tuple[Array, Array, Array, Array]


def per_head(
    rows: Float[Array, "*B R C M"],
    keys: Float[Array, "*B C M"],
    log_decay: Float[Array, "*B C"],
    own: bool,
    past: Bool[Array | np.ndarray, "*#B #R C C"],
) -> Scores:
    """One gate per head: all sums by one product with a triangle of ones. Only `past` keys are
    scored: the product with another may overflow and bring 0 * inf into the gates' gradient."""
    g, C = log_decay, log_decay.shape[-1]
    after = np.tri(C, k=-1, dtype=bool)  # [l, j]: l is after j
    # from key j, or from before the chunk, to row i
    terms = jnp.concatenate([jnp.where(*aligned(after, g[..., None]), 0), g[..., None]], -1)
    sums = _sums(np.tri(C, k=0 if own else -1), terms)
    a = jnp.where(past, jnp.einsum("...rim,...jm->...rij", rows, keys), 0)
    a = a * jnp.exp(sums[..., None, :, :C])
    now = rows * jnp.exp(sums[..., None, :, C:])
    kept = keys * jnp.exp(_sums(np.tri(C, k=-1).T, g[..., None]))
    return a, now, kept, jnp.exp(g.sum(-1)[..., None])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def per_channel(
    rows: Float[Array, "*B R C M"],
    keys: Float[Array, "*B C M"],
    log_decay: Float[Array, "*B C M"],
    own: bool,
) -> Scores:
    """One gate per channel, C a power of two, by recursive halving. Between the halves of a block,
    rows carry the decay since their boundary and keys the decay up to it."""
    return _forward(rows, keys, log_decay, own)[0]


def _forward(rows, keys, log_decay, own):
    keys = once(keys)
    levels, (since, to_end, total) = _levels(jnp.exp(log_decay), own)
    # a sum as a product with ones: XLA's reductions of so few values are slow on a CPU
    alone = (rows * keys[..., None, :, :]) @ jnp.ones(rows.shape[-1], rows.dtype)
    a = alone[..., None, None]  # [*B, R, n, c, c], the scores inside blocks of c = 1, 2, 4, ...
    for c, after, up_to in levels:
        right, left = _second(rows, c) * after[..., None, :, :, :], _first(keys, c) * up_to
        cross = jnp.einsum("...rnim,...njm->...rnij", right, left)
        first, second = halves(a)
        a = joined(first, cross, second)
    out = a[..., 0, :, :], rows * since[..., None, :, :], keys * to_end, total
    return out, (rows, keys, log_decay)


def _backward(own, saved, cotangents):
    """By hand: the gradient of a log_decay is that of all pairs it lies between, which is the sum
    over rows from it on minus the sum over keys from it on."""
    rows, keys, log_decay = saved
    d_a, d_now, d_kept, d_total = cotangents
    C = rows.shape[-2]
    levels, (since, to_end, total) = _levels(jnp.exp(log_decay), own)
    d_crosses, alone = crosses(d_a)
    alone = alone[..., 0]  # [*B, R, C, 1]
    d_rows = _blocks(alone * keys[..., None, :, :], 1)
    d_keys = _blocks(_over_rows(alone * rows), 1)
    for (c, after, up_to), d_cross in zip(levels, d_crosses):
        after = after[..., None, :, :, :]
        right, left = _second(rows, c) * after, _first(keys, c) * up_to
        # a copy for each row, which costs less than moving the rows side by side and back
        copies = jnp.broadcast_to(left[..., None, :, :, :], right.shape)
        d_right = (d_cross @ copies) * after
        d_left = jnp.einsum("...rnij,...rnim->...njm", d_cross, right) * up_to
        (rows1, rows2), (keys1, keys2) = halves(d_rows), halves(d_keys)
        d_rows = jnp.concatenate([rows1, rows2 + d_right], -2)
        d_keys = jnp.concatenate([keys1 + d_left, keys2], -2)
    d_rows = d_rows[..., 0, :, :] + d_now * since[..., None, :, :]
    d_keys, d_kept = d_keys[..., 0, :, :], d_kept * to_end
    d_decay = _sums(np.tri(C, k=0 if own else -1).T, _over_rows(rows * d_rows))
    d_decay -= _sums(np.tri(C).T, keys * d_keys) - _sums(np.tri(C, k=-1), keys * d_kept)
    return d_rows, d_keys + d_kept, d_decay + (d_total * total)[..., None, :]


per_channel.defvjp(_forward, _backward)


def _levels(factor: Float[Array, "*B C M"], own: bool):
    """For each width c of halves: the decay from their boundary to the rows of second halves, and
    from the keys of first halves to it. Then the decays of the whole chunk."""
    C, c = factor.shape[-2], 1
    blocks = _blocks(factor, 1)
    since, to_end = blocks if own else jnp.ones_like(blocks), jnp.ones_like(blocks)
    levels = []
    while c < C:
        # of whole blocks; not products of two totals, which each loop would compute again
        total1, total2 = halves(to_end[..., :1, :] * _blocks(factor, c)[..., :1, :])
        (since1, since2), (end1, end2) = map(halves, (since, to_end))
        levels.append((c, since2, end1))
        since = jnp.concatenate([since1, since2 * total1], -2)
        to_end, c = jnp.concatenate([end1 * total2, end2], -2), 2 * c
    total = to_end[..., 0, 0, :] * factor[..., 0, :]
    return levels, (since[..., 0, :, :], to_end[..., 0, :, :], total)


def _over_rows(x: Float[Array, "*B R C M"]) -> Float[Array, "*B C M"]:
    """The sum over the few rows of a group."""
    return functools.reduce(jnp.add, (x[..., r, :, :] for r in range(x.shape[-3])))


def _blocks(x: Float[Array, "*B C M"], c: int) -> Float[Array, "*B n c M"]:
    return x.reshape(*x.shape[:-2], x.shape[-2] // c, c, x.shape[-1])


def halves(x: Float[Array, "*B n c M"]) -> tuple[Array, Array]:
    """The blocks of even index and those of odd index. (Of `x[..., 0::2, :, :]` XLA's compiler for
    TPUs aborts at heads of width 8, two query heads to each.)"""
    pairs = x.reshape(*x.shape[:-3], x.shape[-3] // 2, 2, *x.shape[-2:])
    return pairs[..., 0, :, :], pairs[..., 1, :, :]


def crosses(a: Float[Array, "*B C C"]) -> tuple[list[Array], Array]:
    """The lower left quarter of each block, between its halves, [*B, n, c, c] for c = 1, 2, 4, ...,
    and the diagonal [*B, C, 1, 1]."""
    found, a = [], a[..., None, :, :]
    while (c := a.shape[-1] // 2) > 0:
        found.append(a[..., c:, :c])
        a = jnp.stack([a[..., :c, :c], a[..., c:, c:]], -3)
        a = a.reshape(*a.shape[:-4], -1, c, c)
    return found[::-1], a


def joined(first: Float[Array, "*B n c c"], cross, second) -> Float[Array, "*B n 2*c 2*c"]:
    """Blocks from their quarters; 0 above the diagonal."""
    top = jnp.concatenate([first, jnp.zeros_like(first)], -1)
    return jnp.concatenate([top, jnp.concatenate([cross, second], -1)], -2)


def _first(x: Float[Array, "*B C M"], c: int) -> Float[Array, "*B n c M"]:
    return halves(_blocks(x, c))[0]


def _second(x: Float[Array, "*B C M"], c: int) -> Float[Array, "*B n c M"]:
    return halves(_blocks(x, c))[1]


def _sums(ones: Float[np.ndarray, "C S"], terms: Float[Array, "*B S M"]) -> Float[Array, "*B C M"]:
    """A product with ones and zeros, in full precision wherever it runs."""
    full = jax.lax.Precision.HIGHEST
    # a matrix for each batch element: one for all would have to be moved
    ones = jnp.broadcast_to(ones.astype(terms.dtype), (*terms.shape[:-2], *ones.shape))
    return jnp.matmul(ones, terms, precision=full)
