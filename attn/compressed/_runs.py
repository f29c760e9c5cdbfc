"""Runs of tokens, a stride apart and perhaps overlapping, pooled into one each, and their mask."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._merge import part_weights
from attn._tokens import in_blocks
from attn.compressed._pooling import pool
from attn.masks.fields import keep
from attn.masks.language import Mask
from attn.masks.record import frozen


@frozen
class Within(Mask):
    """Run j, the tokens j stride ... j stride + kernel - 1, lies entirely between `left` tokens
    before query i and `right` after it."""

    kernel: int
    stride: int
    left: int
    right: int

    def __post_init__(self):
        keep(self, kernel=1, stride=1, left=0, right=0)

    def sees(self, i, j):
        first, last = self._ends(j)
        return (first >= i - self.left) & (last <= i + self.right)

    def tiles(self, i0, i1, j0, j1):
        (first, last), (late_first, late_last) = self._ends(j0), self._ends(j1)
        some = (late_first >= i0 - self.left) & (last <= i1 + self.right)
        return some, (first >= i1 - self.left) & (late_last <= i0 + self.right)

    def _ends(self, j):
        return j * self.stride, j * self.stride + self.kernel - 1


def runs(x: Array, kernel: int, stride: int, axis: int) -> Array:
    """The runs [..., P, kernel, ...] of the tokens [..., T, ...] on `axis`: one begins at every
    multiple of the stride, filled with 0 or False past the last token."""
    blocks = in_blocks(x, stride, axis)
    count, more = blocks.shape[axis], -(-kernel // stride)
    ends = [(0, more - 1) if a == axis else (0, 0) for a in range(blocks.ndim)]
    blocks = jnp.pad(blocks, ends)
    cut = lambda n: jax.lax.slice_in_dim(blocks, n, n + count, axis=axis)
    joined = jnp.concatenate([cut(n) for n in range(more)], axis + 1)
    return jax.lax.slice_in_dim(joined, 0, kernel, axis=axis + 1)


def pool_runs(
    x: Float[Array, "*B P C N W"],
    seen: Bool[Array, "*B P C"],
    how: str,
    weights: Float[Array, "N W L"] | None,
) -> Float[Array, "*B P N W"]:
    """The "mean" or "max" of the visible tokens of each run or, if "dynamic", sum_c d_c x_c with d
    the softmax over them of x_m `weights`, m the middle of L >= C tokens; x is 0 where hidden."""
    if how == "mean":
        return pool(x, seen, None)
    if how == "max":
        top = jnp.where(seen[..., None, None], x, -jnp.inf).max(-3)
        return jnp.where(seen.any(-1)[..., None, None], top, 0)
    C, middle = x.shape[-3], (weights.shape[-1] - 1) // 2
    centre = x[..., middle, :, :] if middle < C else jnp.zeros_like(x[..., 0, :, :])
    logits = jnp.einsum("...nw,nwc->...nc", centre, weights[..., :C].astype(x.dtype))
    share, lse = part_weights(logits, seen[..., None, :])  # [*B, P, N, C]
    poison = jax.lax.stop_gradient(jnp.where(jnp.isnan(lse), jnp.nan, 0))
    return jnp.einsum("...nc,...cnw->...nw", share, x) + poison[..., None]
