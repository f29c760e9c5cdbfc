"""Longformer's window with global tokens (Beltagy et al. 2020, arXiv:2004.05150): O(T w) time."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from attn._core import check_count
from attn._places import Places
from attn.biases import Bias
from attn.masks import FULL, Global, Mask, Window
from attn.sparse._reorder import Part
from attn.sparse.block_sparse import Patterned


def global_window_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    window: int,
    positions: tuple[int, ...] = (0,),
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over keys at most `window` away, and `positions` that see
    all and are seen by all.

    Longformer (Beltagy et al. 2020, arXiv:2004.05150), whose window of w is w / 2 on each side; one
    set of projections for both. O(T (window + positions)) time, O(T) memory. Takes any mask and
    bias; a position past the sequence is no token of it. Raises ValueError for a negative window or
    position.
    """
    return GlobalWindow(window=window, positions=positions)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalWindow(Patterned):
    """Softmax over a window and global tokens, both ways (Longformer, Beltagy et al. 2020)."""

    window: int = 256
    positions: tuple[int, ...] = (0,)

    def __post_init__(self):
        super().__post_init__()
        check_count("window", self.window, least=0)
        object.__setattr__(self, "positions", Global(tuple(self.positions)).positions)

    def patterns(self, T, S):
        return (Window(self.window, self.window) | Global(self.positions),)

    def parts(self, T, S):
        near = Window(self.window, self.window)
        there = lambda L: Places.of([p for p in self.positions if p < L])
        rows, columns = there(T), there(S)
        seen = [Part(near)]
        # all tokens see the global ones; those see the rest
        if len(columns):
            seen.append(Part(~near, keys=columns))
        if len(rows):
            others = Places.of(np.setdiff1d(np.arange(S), columns.array()))
            if len(others):
                seen.append(Part(~near, queries=rows, keys=others))
        return (tuple(seen),)

    @classmethod
    def examples(cls):
        return cls(window=2, positions=(0, 7), block=8), cls(window=0, positions=(18, 40))
