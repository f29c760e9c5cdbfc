"""Exact softmax attention by blocks: O(T) memory forward and backward, any mask, any bias.

Online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867; Rabe & Staats 2021,
arXiv:2112.05682) with the recomputing backward pass of FlashAttention (Dao et al. 2022,
arXiv:2205.14135). Blocks that the static part of the mask empties are never visited. Scores are
kept in base 2, because exp2 is cheaper than exp. It runs in one of four ways, `attn/_forms.py`.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn._core import number_of, scaled
from attn._dropout import Dropout
from attn._forms import FORMS, Form, form_of
from attn._shards import shares, side_by_side
from attn._tiles import LOG2E, Tiling
from attn._tokens import no_output
from attn._varying import vary
from attn._wide import wide
from attn.biases import Bias
from attn.masks import Mask


def blockwise(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    mask: Mask,
    bias: Bias | None,
    *,
    scale: float | Array | None,
    logit_cap: float | None = None,
    block: int | tuple[int, int] | None = None,
    dropout: Dropout | None = None,
) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N"]]:
    """softmax(scale q k^T + bias) v and the log-sum-exp of each row (-inf where it sees nothing).

    Takes arguments that `check_qkv` passed. O(visited blocks) time, O(T + S) memory.
    """
    *batch, T, N, H = q.shape
    S, K, D = *k.shape[-3:-1], v.shape[-1]
    B = math.prod(batch)
    if B == 0 or T == 0 or S == 0:
        out = no_output(q, v)
        return out, jnp.full((*batch, T, N), -jnp.inf, wide(q).dtype)
    if D == 0:  # no output, but log-sum-exps all the same
        v = jnp.zeros_like(k[..., :1])
    known = B if isinstance(B, int) else 1  # `jax.export` may keep the batch as a symbol
    form, (block_q, block_k) = form_of(mask, T, S, N, known, block=block)
    count = 1 if form.at_once else shares(known)  # what does all at once has no loop over rows
    share = B // count if count > 1 else B
    # score tiles of about 2 MB stay in cache
    fits = [r for r in range(1, known + 1) if share % r == 0 and r * N * block_q * block_k <= 2**19]
    number = number_of(scale, H)
    if number is None:  # an array, which may be learned, is applied at once
        q, number = scaled(q, scale), 1.0
    rows = known if form.at_once else max(fits, default=1)
    tiling = Tiling(share, T, S, K, N // K, block_q, block_k, rows, logit_cap, number)
    q = (q if form.at_once else wide(q)).reshape(B, T, N, H)
    mask = mask.merge_batch(tuple(batch))
    if bias is not None:
        whole = -(-T // block_q) * block_q, -(-S // block_k) * block_k
        bias = bias.prepare(tuple(batch), *whole, block=(block_q, block_k))
    if dropout is not None:
        flat = lambda x, L: x.reshape(B, L, -1)
        dropout = Dropout(flat(dropout.rows, T), flat(dropout.columns, S), dropout.rate)
    k, v = k.reshape(B, S, K, H), v.reshape(B, S, K, v.shape[-1])
    # under shard_map what all shards share must vary as the rest does, for its gradient to
    q, k, v, bias = vary((q, k, v, bias), mask, dropout)
    arguments = q, k, v, mask, bias, dropout
    attend = functools.partial(_jitted, tiling, form)
    if count > 1:
        attend = side_by_side(attend, count, _have_rows(B, share, *arguments))
    out, lse = attend(*arguments)
    out = out[..., :D].reshape(*batch, T, N, D).astype(jnp.result_type(k))
    return out, lse.reshape(*batch, T, N)


def _have_rows(B: int, share: int, q, k, v, mask, bias, dropout):
    """Which arrays have the rows of the batch: those of which `share` are fewer."""
    fewer = None if bias is None else jax.eval_shape(lambda: bias.rows(0, share))
    of_bias = jax.tree.map(lambda x, part: x.shape != part.shape, bias, fewer)
    has = jax.tree.map(lambda x: x.shape[0] == B, (q, k, v, mask, dropout))
    return *has[:4], of_bias, has[4]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(tiling, form, q, k, v, mask, bias, dropout):
    return _forward(tiling, form, q, k, v, mask, bias, dropout)[0]


def _forward(tiling, form, q, k, v, mask, bias, dropout):
    t = tiling

    def tile(_, n):
        rest = t.take(mask, n), _rows(t, bias, n), t.take(dropout, n)
        return (), form.forward(t, *t.take((q, k, v), n), *rest)

    out, top, total = map(t.merge, _each_tile(t, form, tile, ())[1])
    lse = jnp.where(total == 0, -jnp.inf, top / LOG2E + jnp.log(total))
    return (out, lse.mT), (q, k, v, mask, bias, dropout, out, top, total)


def _each_tile(t: Tiling, form: Form, tile, carry):
    if form.at_once and t.count == 1:  # no loop around what has none
        carry, made = tile(carry, 0)
        return carry, jax.tree.map(lambda x: x[None], made)
    return lax.scan(tile, carry, jnp.arange(t.count))


def _backward(tiling, form, saved, cotangents):
    t, ((q, k, v, mask, bias, dropout, *rows), learned) = tiling, saved
    dtype = q.dtype
    symbolic = jax.custom_derivatives.SymbolicZero
    cotangents = [jnp.zeros(x.shape, x.dtype) if type(x) is symbolic else x for x in cotangents]
    # the cotangents of a plain sum are constants, and XLA would fold all that follows from them
    # while it compiles: seconds, where running it takes a millisecond
    do, d_lse = lax.optimization_barrier(cotangents)
    cotangents = do, d_lse.mT
    if learned.bias and form.at_once:  # a bias gets its gradient block by block
        form, q = FORMS["loops"], wide(q)

    def tile(d_bias, n):
        rest = t.take(mask, n), _rows(t, bias, n), t.take(dropout, n), _rows(t, d_bias, n)
        dq, dk, dv, d_part = form.backward(t, *t.take((q, k, v, *rows, *cotangents), n), *rest)
        if learned.bias:
            d_bias = d_bias.with_rows(d_part, n * t.rows)
        return d_bias, (dq.astype(dtype), dk.astype(k.dtype), dv.astype(v.dtype))

    zero_bias = jax.tree.map(jnp.zeros_like, bias) if learned.bias else None
    d_bias, grads = _each_tile(t, form, tile, zero_bias)
    untouched = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (mask, dropout))
    return *map(t.merge, grads), untouched[0], d_bias, untouched[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Learned:
    """Whether the gradient of the bias is asked for."""

    bias: bool = dataclasses.field(metadata={"static": True})


def _saving_forward(tiling, form, *arguments):
    learned = any(x.perturbed for x in jax.tree.leaves(arguments[4]))
    result, saved = _forward(tiling, form, *jax.tree.map(lambda x: x.value, arguments))
    return result, (saved, _Learned(learned))


# told which arguments are differentiated: a bias that is not costs no gradient
_attend.defvjp(_saving_forward, _backward, symbolic_zeros=True)
# for calls outside of jit, and as `shard_map` cannot run the rule of its derivative eagerly
_jitted = jax.jit(_attend, static_argnums=(0, 1))


def _rows(t: Tiling, bias: Bias | None, n) -> Bias | None:
    return None if bias is None else bias.rows(n * t.rows, t.rows)
