"""Softmax over a pattern of visible pairs of which only the touched blocks are visited.

A pattern is a static mask, so it is data: drawable, with a density, joined with any other mask. Its
parts (`_reorder.py`) say in which order of the tokens it is made of dense blocks; each part runs by
`attn/_blockwise.py`, and their outputs are merged by their log-sum-exps. One that is whole and in
order may run by a kernel that knows it, as cuDNN does a causal window. Heads may have patterns of
their own.
"""

import abc
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn import _cache
from attn._cached import Cached
from attn._core import dense_attention, dense_weights
from attn._dropout import Dropout, as_dropout, check_rate, dropout_of
from attn._forms import visited_scores
from attn._inputs import check_qkv, check_state
from attn._merge import merged
from attn._prompt import check_prompt
from attn._settings import check_block, check_count
from attn.biases import Bias, as_bias
from attn.kernels.call import Call
from attn.kernels.dispatch import preferred_for_patterns, run
from attn.masks import FULL, TERMS, Causal, Global, Mask, Padding, Strided, Window, from_json
from attn.sparse._reorder import Part, attend_part, laid_out

# of a paper whose heads are of two kinds: each sees both, or they take turns
HEADS = ("merged", "alternating")


def block_sparse_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    pattern: Mask | Sequence[Mask],
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(scale q k^T + bias) v over the pairs that the static `pattern` and `mask` both show.

    Exact for any pattern; of several, head n has the n-th, over and over. Only blocks that a
    pattern touches are visited, of a size chosen by what is visited (or `block`). O(visited
    blocks) time, O(T + S) memory. Raises TypeError for a pattern that holds arrays (those belong
    in `mask`).
    """
    patterns = tuple(pattern) if isinstance(pattern, Iterable) else (pattern,)
    if not patterns or not all(isinstance(p, Mask) and p.static for p in patterns):
        raise TypeError(
            f"pattern: expected static masks, got {pattern}; put Padding and such in mask"
        )
    check_block(block)
    mask, bias = check_qkv(q, k, v, mask, bias)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    parts = tuple((Part(p),) for p in patterns)
    return attend_parts(parts, q, k, v, mask, bias, scale=scale, dropout=dropout, block=block)


block_sparse_attention.heads_alike = lambda pattern=(), **_: (
    isinstance(pattern, Mask) or len(set(pattern)) < 2
)


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
    """Softmax over the pairs of parts that `mask` shows, of checked arguments; head n has the n-th
    parts, over and over. A pair that is in two parts counts twice."""

    def attend(n, q, k, v, bias, dropout):
        options = {"scale": scale, "dropout": dropout, "block": block}
        first, *others = parts[n]
        if first.lies and not others:  # a pattern that a kernel may know, as a window
            seen, _, _ = laid_out(first, q.shape[-3], k.shape[-3], mask)
            return run(Call(q, k, v, seen, bias, **options), preferred_for_patterns())[0]
        done = [attend_part(part, q, k, v, mask, bias, **options) for part in parts[n]]
        return merged(done)[0] if others else done[0][0]

    return by_head(attend, len(parts), q, k, v, bias, dropout)


def by_head(attend, count: int, q, k, v, bias=None, dropout=None) -> Float[Array, "*B T N D"]:
    """attend(n, q, k, v, bias, dropout) of the heads n, n + count, n + 2 count and so on, for each
    n below `count`; as one array with its heads in order."""
    if count == 1:
        return attend(0, q, k, v, bias, dropout)
    N, K = q.shape[-2], k.shape[-2]
    outs, order = [], []
    for n in range(min(count, N)):
        heads = np.arange(n, N, count)
        # where every key head has as many of these heads, they share it as before
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
    """How many scores N heads compute, of which head n has the n-th parts, over and over."""
    heads = [len(range(n, N, len(kinds))) for n in range(len(kinds))]
    return sum(
        count * visited_scores(*laid_out(part, T, S), count, block)
        for count, parts in zip(heads, kinds)
        for part in parts
        if count
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patterned(Cached):
    """A variant is its `patterns`, and the `pieces` by which they are run; all else is here.

    It decodes with a cache of all tokens, of which a step sees the row of its pattern, drawn for
    max_length tokens: what the whole at once sees if the pattern is `settled`.
    """

    honours: ClassVar = (*TERMS, Bias)
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        check_rate(self.dropout_rate)
        check_block(self.block)

    @abc.abstractmethod
    def patterns(self, T: int, S: int) -> tuple[Mask, ...]:
        """Which pairs are visible at these lengths, as data: drawable, with a density; of several
        patterns head n has the n-th, over and over."""

    @property
    def settled(self) -> bool:
        """Whether the same pairs are visible however long the sequence is."""
        of = lambda length: [p.sized(length, length) for p in self.patterns(length, length)]
        return of(64) == of(100)

    @property
    def heads_alike(self):
        return len(set(self.patterns(2, 2))) == 1

    def pieces(self, T: int, S: int) -> tuple[tuple[Part, ...], ...]:
        """Each pattern in disjoint parts, each with the order in which it is dense."""
        return tuple((Part(pattern),) for pattern in self.patterns(T, S))

    def density(self, T: int, S: int) -> float:
        """The share of the T x S pairs that is visible, without other masks; mean over heads."""
        if 0 in (T, S):
            return 0.0
        count = lambda mask, rows, columns: mask.pairs(rows, columns)
        shares = [sum(count(*laid_out(p, T, S)) for p in parts) for parts in self.pieces(T, S)]
        return float(np.mean(shares)) / (T * S)

    def visited(self, T: int, S: int, N: int = 4) -> float:
        """The share of the T x S scores, of dense attention's work, that visited blocks compute."""
        kinds = self.pieces(T, S)
        N = max(N, len(kinds))
        return visited_by_heads(kinds, T, S, N, self.block) / max(T * S * N, 1)

    def describe(self, T: int, S: int | None = None) -> str:
        """One line: the density and the share of dense attention's operations, at these lengths."""
        S = T if S is None else S
        return (
            f"{self.name} at {T} x {S}: {self.density(T, S):.2%} of pairs visible, "
            f"{self.visited(T, S):.2%} of dense FLOPs visited"
        )

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        dropout = dropout_of(self, dropout_key, q, k)
        parts = self.pieces(q.shape[-3], k.shape[-3])
        return attend_parts(parts, q, k, v, mask, bias, dropout=dropout, block=self.block)

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        patterns = self.patterns(q.shape[-3], k.shape[-3])
        attend = lambda n, q, k, v, bias, dropout: dense_attention(
            q, k, v, mask=mask & patterns[n], bias=bias, dropout=dropout
        )
        dropout = dropout_of(self, dropout_key, q, k)
        return by_head(attend, len(patterns), q, k, v, bias, dropout)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        patterns = self.patterns(q.shape[-3], k.shape[-3])
        last = lambda n, q, k, v, bias, _: jnp.moveaxis(
            dense_weights(q, k, mask=mask & patterns[n], bias=bias), -3, -2
        )
        return jnp.moveaxis(by_head(last, len(patterns), q, k, k, bias), -2, -3)

    def flops(self, T, S, N, K, H, D):
        return 2 * visited_by_heads(self.pieces(T, S), T, S, N, self.block) * (H + D)

    def prefill(self, q, k, v, *, max_length, bias=None):
        check_prompt(q, k, v, max_length)
        _, bias = check_qkv(q, k, v, FULL, bias)
        return _cache.fill(k, v, max_length), self._rows(q, k, v, bias, max_length)

    def _rows(self, q, k, v, bias, max_length):
        """The causal output of the first tokens of `max_length`."""
        causal = [Causal() & pattern for pattern in self.patterns(max_length, max_length)]
        parts = tuple((Part(pattern.sized(max_length, max_length)),) for pattern in causal)
        return attend_parts(parts, q, k, v, FULL, bias, block=self.block)

    def step(self, state, q, k, v, *, bias=None):
        check_state(state, _cache.Cache, q)
        check_qkv(q, k, v, FULL)
        length = state.k.shape[-2]
        patterns = [pattern.sized(length, length) for pattern in self.patterns(length, length)]
        at = state.length[None, None], jnp.arange(length)[None]

        def attend(q, k, v, mask, bias=None):
            row = lambda n: mask & Padding(keys=patterns[n].at(*at)[0])
            one = lambda n, q, k, v, bias, _: dense_attention(q, k, v, mask=row(n), bias=bias)
            return by_head(one, len(patterns), q, k, v, as_bias(bias))

        return _cache.decode(state, attend, q, k, v, bias)


def root_up(n: int) -> int:
    """The least integer r >= 1 with r^2 >= n."""
    return math.isqrt(max(n - 1, 0)) + 1


def raster(height: int | None, width: int | None, S: int) -> tuple[int, int]:
    """The sides of an image of S pixels: as given, or of the least square that holds them."""
    side = root_up(S)
    return (side, side) if width is None else (height, width)


def check_raster(height: int | None, width: int | None) -> None:
    """Raise ValueError unless both are counts, or both None."""
    if (height is None) != (width is None):
        raise ValueError(f"height, width: expected both or neither, got {height} and {width}")
    if height is not None:
        check_count("height", height)
        check_count("width", width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSparse(Patterned):
    """Softmax over any static masks, by the blocks they touch; head n has the n-th, over and over.

    `masks` are kept as the JSON texts of `Mask.to_json`, and may be given so.
    """

    masks: tuple[str, ...] = (Window(64, 64).to_json(),)

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.masks, Mask | Iterable):
            raise TypeError(f"masks: expected masks or their JSON, got {self.masks!r}")
        given = (self.masks,) if isinstance(self.masks, Mask | str) else tuple(self.masks)
        if not given:
            raise ValueError("masks: expected at least one mask, got none")
        for mask in given:
            if not isinstance(mask, Mask | str):
                raise TypeError(f"masks: expected masks or their JSON, got {mask!r}")
            if not (mask if isinstance(mask, Mask) else from_json(mask)).static:
                raise TypeError(
                    f"masks: expected static masks, got {mask}; put Padding and such in mask"
                )
        texts = tuple(m.to_json() if isinstance(m, Mask) else m for m in given)
        object.__setattr__(self, "masks", texts)

    def patterns(self, T, S):
        return tuple(map(from_json, self.masks))

    @classmethod
    def examples(cls):
        return (
            cls(masks=Window(3, 1) | Global((0, 7)), block=8),
            cls(masks=(Window(2, 2), Strided(4), Causal())),
        )
