"""The base of all variants that are softmax over a static pattern: the pattern, and its parts."""

import abc
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn import _cache
from attn._cached import Cached
from attn._core import dense_attention, dense_weights
from attn._dropout import check_rate, dropout_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._settings import check_block, check_flags
from attn.biases import Bias, as_bias
from attn.masks import FULL, TERMS, Mask, Padding
from attn.sparse._parts import attend_parts, by_head, visited_by_heads
from attn.sparse._reorder import Part, laid_out

# for papers with two kinds of heads: each head sees both patterns, or they alternate
HEADS = ("merged", "alternating")
# up to this length the blocks of a pattern's pieces hold as many scores as all pairs: the whole of
# it takes 0.3 to 1.2 of their time (forward and backward, two cores) and half the compilation
WHOLE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patterned(Cached):
    """A variant is its `patterns`, and the `pieces` in which long ones run; all else is here.

    It decodes with a cache of all tokens; a step sees its row of the pattern for max_length tokens,
    which is the row of the whole sequence at once if the pattern is `settled`, as that of
    `of_length` is.
    """

    honours: ClassVar = (*TERMS, Bias)
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        check_flags(self)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @abc.abstractmethod
    def patterns(self, T: int, S: int) -> tuple[Mask, ...]:
        """Which pairs are visible at these lengths, as data that can be drawn and has a density;
        heads take several patterns in turn, cyclically."""

    @property
    def settled(self) -> bool:
        """Whether the same pairs are visible however long the sequence is."""
        of = lambda length: [p.sized(length, length) for p in self.patterns(length, length)]
        return of(64) == of(100)

    @property
    def heads_alike(self):
        return len(set(self.patterns(2, 2))) == 1

    def pieces(self, T: int, S: int) -> tuple[tuple[Part, ...], ...]:
        """Each pattern as disjoint parts, each with the order of tokens in which it is dense."""
        return tuple((Part(pattern),) for pattern in self.patterns(T, S))

    def running(self, T: int, S: int) -> tuple[tuple[Part, ...], ...]:
        """The pieces that run: each pattern whole where it is short, unless a `block` is given."""
        short = self.block is None and max(T, S) <= WHOLE
        return Patterned.pieces(self, T, S) if short else self.pieces(T, S)

    def density(self, T: int, S: int) -> float:
        """The share of the T x S pairs that are visible without other masks, mean over heads."""
        if 0 in (T, S):
            return 0.0
        laid = ([laid_out(part, T, S) for part in parts] for parts in self.pieces(T, S))
        shares = [sum(mask.pairs(*sizes) for mask, *sizes in parts) for parts in laid]
        return float(np.mean(shares)) / (T * S)

    def visited(self, T: int, S: int, N: int = 4) -> float:
        """The share of dense attention's T x S scores that the visited blocks compute."""
        kinds = self.running(T, S)
        N = max(N, len(kinds))
        return visited_by_heads(kinds, T, S, N, self.block) / max(T * S * N, 1)

    def describe(self, T: int, S: int | None = None) -> str:
        """One line: the density and the share of dense attention's operations, at these lengths."""
        S = T if S is None else S
        return (
            f"{self.name} at {T} x {S}: {self.density(T, S):.2%} of pairs visible, "
            f"{self.visited(T, S):.2%} of dense FLOPs visited"
        )

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None) -> Array:
        mask, bias = check_qkv(q, k, v, mask, bias)
        dropout = dropout_of(self, dropout_key, q, k)
        parts = self.running(q.shape[-3], k.shape[-3])
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
        return 2 * visited_by_heads(self.running(T, S), T, S, N, self.block) * (H + D)

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
