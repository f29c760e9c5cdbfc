"""LongNet's dilated attention (Ding et al. 2023, arXiv:2307.02486): longer segments are sampled
more sparsely."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn import _cache
from attn._cached import Cached
from attn._core import dense_attention, dense_weights
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state, refuse_rest
from attn._places import Places
from attn._settings import check_count
from attn._wide import wide
from attn.masks import FULL, TERMS, Fixed, Mask
from attn.masks import Array as Shown
from attn.sparse._parts import attend_parts, by_head, visited_by_heads
from attn.sparse._reorder import Part


def dilated_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    segments: tuple[int, ...] = (2048, 8192, 32768),
    rates: tuple[int, ...] = (1, 4, 16),
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + log c) v, where c_ij counts the segment lengths w with rates r
    that join i and j: floor(i / w) = floor(j / w), and for head n both i and j are n modulo r,
    counted from the start of their segment.

    This is LongNet's (Ding et al. 2023, arXiv:2307.02486) sum of the outputs of all (w, r),
    weighted by their softmax denominators. The authors' code stops the gradient of those weights,
    which flows here, and takes the same tokens for N / r consecutive heads, where the paper and
    this take them for every r-th. O(T sum_w w / r^2) time, O(T) memory. Takes any mask; raises
    NotImplementedError for a bias, ValueError for lists of different lengths, and for numbers below
    1.
    """
    return DilatedSegments(segments=segments, rates=rates)(q, k, v, mask=mask, bias=bias)


dilated_attention.heads_alike = lambda mask=None, bias=None, **settings: (
    DilatedSegments(**settings).heads_alike
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DilatedSegments(Cached):
    """Softmax over segments, longer ones sampled more sparsely, at other tokens in other heads
    (LongNet, Ding et al. 2023)."""

    honours: ClassVar = TERMS
    segments: tuple[int, ...] = (2048, 8192, 32768)
    rates: tuple[int, ...] = (1, 4, 16)

    def __post_init__(self):
        for name in ("segments", "rates"):
            if not isinstance(given := getattr(self, name), Iterable):
                raise TypeError(f"{name}: expected integers, got {given!r}")
            object.__setattr__(self, name, tuple(given))
            for value in getattr(self, name):
                check_count(name, value)
        if len(self.segments) != len(self.rates) or not self.rates:
            raise ValueError(
                f"rates: expected one for each of {len(self.segments)} segments (at least one), "
                f"got {len(self.rates)}"
            )

    @property
    def _kinds(self) -> int:
        """The number of heads after which the tokens taken repeat."""
        return math.lcm(*self.rates)

    @property
    def heads_alike(self):
        return self._kinds == 1

    def pieces(self, T: int, S: int) -> tuple[tuple[Part, ...], ...]:
        """For each kind of head, the pairs of each segment length among the tokens it takes."""
        taken = lambda L, n, w, r: Places.of(np.flatnonzero(_takes(np.arange(L), n, w, r)))
        part = lambda n, w, r: Part(Fixed(w, 0), taken(T, n, w, r), taken(S, n, w, r))
        levels = list(zip(self.segments, self.rates))
        there = lambda n, w, r: n % r < min(T, S, w)
        return tuple(
            tuple(part(n, w, r) for w, r in levels if there(n, w, r)) or (Part(~FULL),)
            for n in range(self._kinds)
        )

    def counts(self, n: int, i: Int[Array, "T 1"], j: Int[Array, "1 S"]) -> Int[Array, "T S"]:
        """How many segment lengths join query i of head n and key j."""
        pairs = zip(self.segments, self.rates)
        joined = lambda w, r: (i // w == j // w) & _takes(i, n, w, r) & _takes(j, n, w, r)
        return sum(joined(w, r).astype(jnp.int32) for w, r in pairs)

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        mask, bias = check_qkv(q, k, v, mask, bias)
        refuse_rest(self.name, FULL, bias, self.honours)
        return attend_parts(self.pieces(q.shape[-3], k.shape[-3]), q, k, v, mask, None)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        refuse_rest(self.name, FULL, bias, self.honours)
        at = jnp.arange(q.shape[-3])[:, None], jnp.arange(k.shape[-3])[None]
        return self._dense(dense_attention, at, q, k, v, mask)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        refuse_rest(self.name, FULL, bias, self.honours)
        at = jnp.arange(q.shape[-3])[:, None], jnp.arange(k.shape[-3])[None]
        last = lambda q, k, v, **rest: jnp.moveaxis(dense_weights(q, k, **rest), -3, -2)
        return jnp.moveaxis(self._dense(last, at, q, k, k, mask), -2, -3)

    def _dense(self, attend, at, q, k, v, mask):
        batch = (1,) * (q.ndim - 3)

        def one(n, q, k, v, bias, dropout):
            counts = self.counts(n, *at)
            log = jnp.log(jnp.maximum(counts, 1).astype(wide(q).dtype))
            seen = mask & Shown(jnp.broadcast_to(counts > 0, (*batch, *counts.shape)))
            return attend(q, k, v, mask=seen, bias=log.reshape(*batch, 1, *log.shape))

        return by_head(one, self._kinds, q, k, v)

    def flops(self, T, S, N, K, H, D):
        return 2 * visited_by_heads(self.pieces(T, S), T, S, N) * (H + D)

    def step(self, state, q, k, v):
        check_state(state, _cache.Cache, q)
        check_qkv(q, k, v, FULL)
        at = state.length[None, None], jnp.arange(state.k.shape[-2])[None]
        attend = lambda q, k, v, mask: self._dense(dense_attention, at, q, k, v, mask)
        return _cache.decode(state, attend, q, k, v)

    @classmethod
    def examples(cls):
        return cls(segments=(5, 10), rates=(1, 2)), cls(segments=(6,), rates=(3,))


def _takes(x: Int[Any, "*X"], n: int, w: int, r: int) -> Bool[Any, "*X"]:
    """Whether head n takes the tokens x of segments of length w, every r-th from their start."""
    return x % w % r == n % r
