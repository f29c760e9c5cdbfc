"""Softmax over a pattern of visible pairs, visiting only the blocks it touches.

The parts of a pattern (`_reorder.py`) give the order of the tokens in which it is made of dense
blocks; each part runs in `attn/_blockwise.py`, and their outputs are merged by their log-sum-exps.
A single part in the original order may run in a kernel that supports it, as a causal window does in
cuDNN. Heads may have patterns of their own.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn._dropout import Dropout
from attn._forms import visited_scores
from attn._merge import merged
from attn.biases import Bias
from attn.kernels.call import Call
from attn.kernels.dispatch import preferred_for_patterns, run
from attn.masks import Mask
from attn.sparse._reorder import Part, attend_part, laid_out


def attend_parts(
    parts: Sequence[Sequence[Part]],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    mask: Mask,
    bias: Bias | None,
    *,
    scale: float | Array | None = None,
    dropout: Dropout | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """Softmax over the pairs of the parts that `mask` shows, for checked arguments; heads take the
    entries of `parts` in turn, cyclically. A pair that is in two parts counts twice."""

    def attend(n, q, k, v, bias, dropout):
        options = {"scale": scale, "dropout": dropout, "block": block}
        first, *others = parts[n]
        if first.lies and not others:  # a kernel may support it, as a window
            seen, _, _ = laid_out(first, q.shape[-3], k.shape[-3], mask)
            return run(Call(q, k, v, seen, bias, **options), preferred_for_patterns())[0]
        done = [attend_part(part, q, k, v, mask, bias, **options) for part in parts[n]]
        return merged(done)[0] if others else done[0][0]

    return by_head(attend, len(parts), q, k, v, bias, dropout)


def by_head(attend, count: int, q, k, v, bias=None, dropout=None) -> Float[Array, "*B T N D"]:
    """attend(n, q, k, v, bias, dropout) on the heads n, n + count, n + 2 count and so on, for each
    n below `count`, as one array with its heads in order."""
    if count == 1:
        return attend(0, q, k, v, bias, dropout)
    N, K = q.shape[-2], k.shape[-2]
    outs, order = [], []
    for n in range(min(count, N)):
        heads = np.arange(n, N, count)
        # if every key head has equally many of these heads, they share it as before
        shared = (N // K) % count == 0
        keys = np.arange(K) if shared else heads * K // N
        few = lambda x, at, axis=-2: jnp.take(x, at, axis=axis)
        drop = dropout
        if drop is not None:
            drop = Dropout(few(drop.rows, heads, -1), few(drop.columns, keys, -1), drop.rate)
        of = None if bias is None else bias.of_heads(heads)
        outs.append(attend(n, few(q, heads), few(k, keys), few(v, keys), of, drop))
        order.append(heads)
    back = np.argsort(np.concatenate(order))
    return jnp.take(jnp.concatenate(outs, -2), back, axis=-2)


def visited_by_heads(kinds: Sequence[Sequence[Part]], T: int, S: int, N: int, block=None) -> int:
    """How many scores N heads compute, which take the entries of `kinds` in turn, cyclically."""
    heads = [len(range(n, N, len(kinds))) for n in range(len(kinds))]
    return sum(
        count * visited_scores(*laid_out(part, T, S), count, block)
        for count, parts in zip(heads, kinds)
        for part in parts
        if count
    )
