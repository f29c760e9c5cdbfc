"""Softmax over any static masks, visiting only the blocks they touch.

A pattern is a static mask, so it is data: it can be drawn, has a density, and joins with any other
mask. How it runs is in `_parts.py`, how it decodes in `_patterned.py`.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxtyping import Array, Float

from attn._dropout import as_dropout
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_block
from attn.biases import Bias
from attn.masks import FULL, Causal, Global, Mask, Strided, Window, from_json
from attn.sparse._parts import attend_parts
from attn.sparse._patterned import Patterned
from attn.sparse._reorder import Part


@auto_inside
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

    Exact for any pattern; heads take several patterns in turn, cyclically. Only blocks that a
    pattern touches are visited, of size `block` or, if None, of one chosen for the least work.
    O(visited blocks) time, O(T + S) memory. Raises TypeError for a pattern that holds arrays (those
    belong in `mask`).
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSparse(Patterned):
    """Softmax over any static masks, by the blocks they touch; heads take them in turn, cyclically.

    `masks` are stored as JSON strings (`Mask.to_json`) and may be given as such.
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

    def of_length(self, max_length):
        masks = self.patterns(max_length, max_length)
        return dataclasses.replace(
            self, masks=tuple(mask.sized(max_length, max_length) for mask in masks)
        )

    def patterns(self, T, S):
        return tuple(map(from_json, self.masks))

    @classmethod
    def examples(cls):
        return (
            cls(masks=Window(3, 1) | Global((0, 7)), block=8),
            cls(masks=(Window(2, 2), Strided(4), Causal())),
        )
