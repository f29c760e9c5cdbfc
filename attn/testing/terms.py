"""check_mask(mask): checks what a custom mask says of whole blocks against the pairs it shows."""

import math

import jax
import numpy as np

from attn.masks import Mask
from attn.testing.contract import BrokenLaw

BLOCKS = ((1, 1), (4, 4), (3, 5), (8, 2), (16, 16), (32, 32), (64, 64))


def check_mask(mask: Mask, T: int = 37, S: int = 29) -> None:
    """Raise BrokenLaw if, for T queries and S keys, `tiles` skips a block that holds a visible pair
    or calls one full that hides a pair, or if `sees` of traced indices differs from NumPy's.

    Such a mask gives wrong numbers without an error, since `tiles` is trusted. O(T S). Raises
    TypeError for what is not a Mask, ValueError for arrays that do not fit T and S.
    """
    if not isinstance(mask, Mask):
        raise TypeError(f"mask: expected an attn.Mask, got {type(mask).__name__}")
    drawn = np.asarray(mask.array(T, S))
    mask.check(drawn.shape[:-2], T, S)
    i, j = np.arange(T)[:, None], np.arange(S)[None, :]
    if not np.array_equal(jax.jit(mask.sized(T, S).at)(i, j), drawn):
        raise BrokenLaw(f"{mask}: under jit, sees another {T} x {S} pairs than without")
    drawn = drawn.reshape(math.prod(drawn.shape[:-2]), T, S)
    seen, full = drawn.any(0), drawn.all(0)  # in some row of the batch, in all
    for rows, columns in BLOCKS:
        some, every = mask.blocks(T, S, rows, columns)
        for a, b in np.ndindex(some.shape):
            at = np.s_[a * rows : (a + 1) * rows, b * columns : (b + 1) * columns]
            where = f"queries {a * rows}.., keys {b * columns}.. ({rows} x {columns})"
            if seen[at].any() and not some[a, b]:
                raise BrokenLaw(f"{mask}: tiles skips {where}, which holds a visible pair")
            if every[a, b] and not full[at].all():
                raise BrokenLaw(f"{mask}: tiles calls {where} full, which hides a pair")
