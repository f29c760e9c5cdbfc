"""Band: masks whose rows see one range of keys, which most attention kernels know natively."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from attn._axes import conjunction
from attn.kernels.segments import sees_own_segment
from attn.masks import FULL, Causal, Mask, Padding, Segments, Window
from attn.masks.language import joined


@dataclasses.dataclass(frozen=True)
class Band:
    """i - left <= j <= i + right (None: no bound) among the keys that `padding` and `segments`
    show.

    `rest` is the remainder of the mask; `others` is that together with the bounds."""

    T: int
    S: int
    left: int | None
    right: int | None
    padding: Padding | None
    segments: Segments | None
    rest: Mask
    others: Mask

    @property
    def has_lengths(self) -> bool:
        return self.padding is not None and self.padding.lengths is not None

    @property
    def has_holes(self) -> bool:
        """Whether keys are padded in boolean form, which need not be the last ones."""
        return self.padding is not None and self.padding.keys is not None

    def lengths(self, B: int) -> Int[jax.Array, " B"] | None:
        """How many keys are not padding, within 1..S. Never 0: what a kernel does in a row without
        keys is not known, and such rows are hidden from it."""
        if not self.has_lengths:
            return None
        return jnp.broadcast_to(jnp.clip(self.padding.lengths, 1, self.S).astype(jnp.int32), (B,))

    def ends(self):
        """The first key of each query's range and one past its last: integers [T]."""
        i = np.arange(self.T)
        first = np.zeros_like(i) if self.left is None else np.clip(i - self.left, 0, self.S)
        past = np.full_like(i, self.S)
        return first, past if self.right is None else np.clip(i + self.right + 1, 0, self.S)

    def always_sees(self) -> bool:
        """Whether every query sees a key whenever at least one key is not padding."""
        first, past = self.ends()
        past = np.minimum(past, 1) if self.has_lengths else past
        return bool((first < past).all())

    def queries(self) -> Bool[jax.Array, "*#B T"] | None:
        """Which queries see a key, exactly if `rest` is FULL; None if all do."""
        first, past = self.ends()
        if self.padding is None and self.segments is None:
            return None if (first < past).all() else jnp.asarray(first < past)
        padding = self.padding
        keys = jnp.ones(self.S, bool) if padding is None else padding.seen_keys(self.S)
        if self.segments is None:
            # real keys before each position: a range with one has more before its end than start
            count = jnp.pad(jnp.cumsum(keys, -1), [(0, 0)] * (keys.ndim - 1) + [(1, 0)])
            seen = count[..., past] > count[..., first]
        else:
            seen = sees_own_segment(*self.segments.ids, keys, first, past)
        return seen if padding is None else conjunction(seen, padding.seen_queries(self.T))

    def keys(self) -> Bool[jax.Array, "*#B S"] | None:
        """Which keys may be seen; None if all may. Those of other segments count as seen."""
        j = np.arange(self.S)
        near = j < (self.S if self.right is None else self.T + self.right)
        if self.padding is None:
            return None if near.all() else jnp.asarray(near)
        return conjunction(self.padding.seen_keys(self.S), near)

    def rows(self) -> tuple[Bool[jax.Array, "*#B T"] | None, Bool[jax.Array, "*#B S"] | None]:
        """`queries` and `keys`."""
        return self.queries(), self.keys()


def split(mask: Mask, T: int, S: int) -> Band:
    """The mask as a band and a rest; a bound that hides nothing of T x S is None."""
    (padding, segments), others = mask.take(Padding, Segments)
    left, right, rest = S + T, S + T, FULL
    for term in joined(others):
        if type(term) is Causal:  # not one that inherits from it, and may see others
            right = min(right, term.offset)
        elif type(term) is Window:
            left, right = min(left, term.left), min(right, term.right)
        else:
            rest = rest & term
    left = None if left >= T - 1 else left
    right = None if right >= S - 1 else right
    return Band(T, S, left, right, padding, segments, rest, others)
