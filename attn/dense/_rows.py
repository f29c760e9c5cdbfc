"""Dense attention by blocks of b query rows, however the weights are made: O(b S) memory.

For scores and normalisers without a hand-written backward pass (softmax over dot products has one,
`attn/_blockwise.py`): each block is computed against the range of keys that a static mask leaves
it, and recomputed in the backward pass, so derivatives of any kind and order take O(b S) too.

NaN and Inf are removed from q, k and v first, and the rows that see them made NaN at the end:
everything between is finite, and so are all gradients that do not come from those rows.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._arrays import check_shapes
from attn._axes import aligned
from attn._core import apply_weights, biased, isolate, masked_softmax, mix, seen_array
from attn._dropout import Dropout
from attn._inputs import check_qkv
from attn._settings import check_block
from attn._tokens import blocks_first, even_blocks, no_output, to_heads
from attn._turns import held
from attn._wide import wide
from attn.biases import Bias
from attn.masks import Mask

BUDGET = 2**19  # float32 numbers that stay in cache


@dataclasses.dataclass(frozen=True)
class Tile:
    """A block of b query rows against a range of c keys."""

    rows: Any  # the features of queries, a pytree of [..., b, N, *]
    columns: Any  # the features of keys, a pytree of [..., c, K, *]
    j: Int[Array, " c"]
    seen: Bool[Array, "*#B #N b c"]
    bias: Float[Array, "*#B N b c"] | float


class Form:
    """A variant, a pytree of its learned arrays: the `features` of finite q and k (None: q and k
    themselves), and the weights of a tile of finite features.

    `near(rows, j)` is False where the variant itself hides keys: [*B, N, b, c] from rows
    [..., b, N, *].
    """

    features: Callable[[Array, Array], tuple[Any, Any]] | None = None
    near: Callable[[Any, Array], Bool[Array, "*#B N b c"]] | None = None

    def weigh(self, tile: Tile) -> Float[Array, "*#B N b c"]:
        raise NotImplementedError


def attend(
    form: Form,
    q: Float[Array, "*B T N _"],
    k: Float[Array, "*B S K _"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask,
    bias: Bias | None,
    dropout: Dropout | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """Weights times v in q's dtype, `block` rows at a time, for arguments that `check_qkv`
    passed."""
    check_block(block)
    if 0 in (*q.shape[:-2], v.shape[-3]):
        return no_output(q, v)
    return _attend(block, form, q, k, v, mask, bias, dropout)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
def _attend(block, form, q, k, v, mask, bias, dropout) -> Float[Array, "*B T N D"]:
    *batch, T, N, _ = q.shape
    S, D = v.shape[-3], v.shape[-1]
    count, b = _row_blocks(T, math.prod(batch) * N * S, block)
    clean, v_poison = isolate(wide(v))
    rows, columns = _meeting(form, q, k, v_poison)
    words = None if dropout is None else (dropout.rows[..., None], dropout.columns[..., None])
    rows, columns = (rows, words and words[0]), (columns, words and words[1], clean)

    def one_block(c, a, start, rows):
        """The output of rows a b and on against c keys from `start` on: [*B, b, N, D]."""
        rows, row_words = rows
        cut = lambda x: x if c == S else lax.dynamic_slice_in_dim(x, start, c, x.ndim - 3)
        keys, key_words, values = jax.tree.map(cut, columns)
        # rows past T are cut off at the end
        i, j = jnp.minimum(a * b + jnp.arange(b), T - 1), start + jnp.arange(c)
        w, poison, _ = _weights(form, rows, keys, i, j, mask, bias)
        w, over = isolate(jnp.broadcast_to(w, (*batch, N, b, c)))  # of scores that overflowed
        if dropout is not None:
            w = Dropout(row_words[..., 0], key_words[..., 0], dropout.rate).of_scores(w)
        return mix(w, values) + jnp.swapaxes(poison + over, -1, -2)[..., None]

    if count == 1:
        return one_block(S, 0, 0, rows).astype(jnp.result_type(q))
    blocks, outs = jax.tree.map(lambda x: blocks_first(x, b), rows), []
    for at, starts, c in _runs(mask, T, S, b):
        body = jax.checkpoint(lambda x, c=c: one_block(c, *x), prevent_cse=False)
        mine = jax.tree.map(lambda x: x[at[0] : at[-1] + 1], blocks)
        outs.append(lax.map(body, (jnp.asarray(at), jnp.asarray(starts), mine)))
    out = jnp.moveaxis(jnp.concatenate(outs), 0, -4).reshape(*batch, count * b, N, D)
    return out[..., :T, :, :].astype(jnp.result_type(q))


def _row_blocks(T: int, numbers: int, block: int | None) -> tuple[int, int]:
    """How many blocks of rows there are, and rows in each, if a row has `numbers` scores."""
    return even_blocks(T, max(16, held(BUDGET) // numbers) if block is None else block)


def met_pairs(mask: Mask, T: int, S: int, N: int, block: int | None) -> int:
    """How many (query, key) pairs are computed in each of N heads, batch 1."""
    if 0 in (T, S):
        return 0
    count, b = _row_blocks(T, N * S, block)
    return T * S if count == 1 else sum(len(at) * b * c for at, _, c in _runs(mask, T, S, b))


def draw(form: Form, q, k, *, mask: Mask, bias: Bias | None) -> Float[Array, "*B N T S"]:
    """The whole weights, for arguments that `check_qkv` passed: O(T S) memory."""
    T, N, S = *q.shape[-3:-1], k.shape[-3]
    rows, columns = _meeting(form, q, k, 0)
    w, poison, seen = _weights(form, rows, columns, jnp.arange(T), jnp.arange(S), mask, bias)
    return jnp.broadcast_to(w + jnp.where(seen, poison[..., None], 0), (*q.shape[:-3], N, T, S))


def _meeting(form, q, k, v_poison):
    """The features of queries and of keys, each with its poison [..., 1], NaN if not finite."""
    (q, q_poison), (k, k_poison) = isolate(wide(q)), isolate(wide(k))
    k_poison = k_poison + v_poison
    if form.features is None:
        return (q, q_poison[..., None]), (k, k_poison[..., None])
    return tuple(map(_finite, form.features(q, k), (q_poison, k_poison)))


def _finite(features, poison):
    """The features, 0 where they overflow, and the poison, NaN there too."""
    leaves, tree = jax.tree.flatten(features)
    for n, x in enumerate(leaves):
        leaves[n], over = isolate(x)
        poison = jnp.add(*aligned(to_heads(poison, over.shape[-1]), over))
    return tree.unflatten(leaves), poison[..., None]


def _weights(form, rows, columns, i, j, mask, bias):
    """The weights of a tile; NaN [*B, N, b] for rows that see a non-finite token; the mask."""
    (rows, q_poison), (columns, k_poison) = rows, columns
    N, K = q_poison.shape[-2], k_poison.shape[-2]
    heads_first = lambda x: jnp.swapaxes(x[..., 0], -1, -2)
    q_poison = heads_first(q_poison)[..., None]
    k_poison = jnp.repeat(heads_first(k_poison), N // K, axis=-2)[..., None, :]
    here = i[:, None], j[None]
    _, seen = aligned(q_poison, mask.at(*here)[..., None, :, :])
    if form.near is not None:
        seen = seen & form.near(rows, j)
    add = 0.0
    if bias is not None:
        _, add = aligned(q_poison, bias.at(*here).astype(q_poison.dtype))
    w = form.weigh(Tile(rows, columns, j, seen, add))
    poison = jnp.where(seen, q_poison + k_poison, 0)
    return w, poison.sum(-1), seen


def _runs(mask: Mask, T: int, S: int, b: int):
    """(blocks, the first key of each, how many keys): up to four groups of neighbouring blocks,
    since the blocks of one loop take equally many keys."""
    step = max(b, -(-S // 64))
    some = mask.blocks(T, S, b, step)[0]
    any_, last = some.any(1), some.shape[1] - np.argmax(some[:, ::-1], 1)
    first = np.where(any_, np.argmax(some, 1), 0) * step
    end = np.where(any_, np.minimum(last * step, S), 1)
    groups = np.array_split(np.arange(len(some)), max(1, min(4, len(some) // 4)))
    widths = [int((end - first)[at].max()) for at in groups]
    if len(set(widths)) == 1:
        groups, widths = [np.arange(len(some))], widths[:1]
    for at, c in zip(groups, widths):
        yield at, np.minimum(first[at], S - c).astype(np.int32), c


def tanh_scores(
    u: Float[Array, "*B b N A"], x: Float[Array, "*B c K A"], v: Float[Array, "N A"]
) -> Float[Array, "*B N b c"]:
    """v . tanh(u_i + x_j) of every pair, by chunks of keys, so that b x c x A is never held."""
    *batch, b, N, A = u.shape
    c, K = x.shape[-3:-1]
    size = min(c, max(16, held(BUDGET) // max(1, u.size)))  # keys of a chunk
    count = -(-c // max(1, size))
    # few axes: XLA's CPU compiler (jaxlib 0.10) has written out of bounds where there were seven
    B = math.prod(batch)
    u = jnp.swapaxes(u.reshape(B, b, N, A), 1, 2)[..., None, :]  # [B, N, b, 1, A]

    def chunk(x):
        x = jnp.repeat(jnp.swapaxes(x, 1, 2), N // K, axis=1)[..., None, :, :]  # [B, N, 1, size, A]
        return jnp.einsum("bntsa,na->bnts", jnp.tanh(u + x), v)

    x = x.reshape(B, c, K, A)
    if count <= 1:
        return chunk(x).reshape(*batch, N, b, c)
    s = lax.map(jax.checkpoint(chunk, prevent_cse=False), blocks_first(x, size))
    return jnp.moveaxis(s, 0, -2).reshape(*batch, N, b, count * size)[..., :c]


def whole(s, q, k, v, *, mask, bias, dropout, weigh=masked_softmax) -> Float[Array, "*B T N D"]:
    """weigh(s + bias) v of whole scores [*B, N, T, S]: the last step of references."""
    mask, bias = check_qkv(q, k, v, mask, bias)
    s = jnp.broadcast_to(s, (*q.shape[:-3], *s.shape[-3:]))
    s, seen = aligned(biased(s, bias), seen_array(mask, *s.shape[-2:]))
    w = weigh(s, seen)
    return apply_weights(w if dropout is None else dropout.of_scores(w), wide(v), seen)


def check_given(given: dict[str, Array | None], wanted: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless exactly the wanted arrays are given, in their shapes; TypeError for
    anything but arrays of floats."""
    for name, x in given.items():
        if (x is None) != (name not in wanted):
            want, got = ("None", "an array") if name not in wanted else ("an array", "None")
            raise ValueError(f"{name}: expected {want} with these settings, got {got}")
    check_shapes({name: given[name] for name in wanted}, wanted)


def last_sizes(x: Array | None, count: int) -> tuple[int, ...]:
    """The sizes of an array's last axes; 0 where it has none, which `check_given` reports."""
    return (*(0,) * count, *getattr(x, "shape", ()))[-count:]
