"""Softmax over a pattern of visible pairs of which only the touched blocks are visited.

A pattern is a static mask, so it is data: drawable, with a density, joined with any other mask. Its
parts (`_reorder.py`) say in which order of the tokens it is made of dense blocks; each part runs by
`attn/_blockwise.py`, and their outputs are merged by their log-sum-exps.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._core import (
    check_block,
    check_qkv,
    dense_attention,
    dense_weights,
    merged,
)
from attn._dropout import Dropout, as_dropout, check_rate, dropout_of
from attn.biases import Bias
from attn.masks import FULL, TERMS, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse._reorder import Part, attend_part


def block_sparse_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    pattern: Mask,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    scale: float | Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(scale q k^T + bias) v over the pairs that the static `pattern` and `mask` both show.

    Exact for any pattern; only blocks that it touches are visited, of a size chosen by what is
    visited (or `block`). O(visited blocks) time, O(T + S) memory. Raises TypeError for a pattern
    that holds arrays (those belong in `mask`).
    """
    if not isinstance(pattern, Mask) or not pattern.static:
        raise TypeError("pattern: expected a static mask (no arrays); put Padding and such in mask")
    check_block(block)
    mask, bias = check_qkv(q, k, v, mask, bias)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return attend_parts(
        (Part(pattern),), q, k, v, mask, bias, scale=scale, dropout=dropout, block=block
    )


def attend_parts(
    parts: Sequence[Part],
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
    """Softmax over the pairs of disjoint parts that `mask` shows, of checked arguments."""
    options = {"scale": scale, "dropout": dropout, "block": block}
    done = [attend_part(part, q, k, v, mask, bias, **options) for part in parts]
    return done[0][0] if len(done) == 1 else merged(done)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patterned(Mechanism):
    """A variant is its `pattern`, and the `parts` by which that is run; all else is here.

    It decodes with a cache of all tokens, of which a step sees the row of its pattern, drawn for
    max_length tokens.
    """

    honours: ClassVar = (*TERMS, Bias)
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        check_rate(self.dropout_rate)
        check_block(self.block)

    @abc.abstractmethod
    def pattern(self, T: int, S: int) -> Mask:
        """Which pairs are visible at these lengths, as data: drawable, with a density."""

    def parts(self, T: int, S: int) -> tuple[Part, ...]:
        """The pattern in disjoint parts, each with the order in which it is dense."""
        return (Part(self.pattern(T, S)),)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        dropout = dropout_of(self, dropout_key, q, k)
        parts = self.parts(q.shape[-3], k.shape[-3])
        return attend_parts(parts, q, k, v, mask, bias, dropout=dropout, block=self.block)

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        mask = mask & self.pattern(q.shape[-3], k.shape[-3])
        dropout = dropout_of(self, dropout_key, q, k)
        return dense_attention(q, k, v, mask=mask, bias=bias, dropout=dropout)

    def weights(self, q, k, *, mask=FULL, bias=None):
        return dense_weights(q, k, mask=mask & self.pattern(q.shape[-3], k.shape[-3]), bias=bias)

    def flops(self, T, S, N, K, H, D):
        return 2 * round(self.pattern(T, S).density(T, S) * T * S) * N * (H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def prefill(self, q, k, v, *, max_length):
        check_qkv(q, k, v, FULL)
        return _cache.fill(k, v, max_length), self._rows(q, k, v, max_length)

    def _rows(self, q, k, v, max_length):
        """The causal output of the first tokens of `max_length`."""
        mask, _ = check_qkv(q, k, v, Causal() & self.pattern(max_length, max_length))
        return attend_parts((Part(FULL),), q, k, v, mask, None, block=self.block)

    def step(self, state, q, k, v):
        check_qkv(q, k, v, FULL)
        length = state.k.shape[-2]
        seen = self.pattern(length, length).sized(length, length)
        row = seen.at(state.length[None, None], jnp.arange(length)[None])[0]
        attend = lambda q, k, v, mask: dense_attention(q, k, v, mask=mask & Padding(keys=row))
        return _cache.decode(state, attend, q, k, v)
