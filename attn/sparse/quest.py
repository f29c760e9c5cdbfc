"""Quest (Tang et al. 2024, arXiv:2406.10774): decoding reads the pages that may score highest."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._settings import check_count
from attn.masks import Causal, Mask
from attn.sparse._chosen import Chosen
from attn.sparse._select import Blocks


def quest_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    page: int = 16,
    top: int = 32,
    mask: Mask,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H)) v over the keys of each query's own page and of the top - 1 pages
    before it with the largest sum_h max(q_h low_h, q_h high_h).

    low and high are the minimum and maximum of each channel over a page's keys, so that the sum is
    an upper bound on q . k in the page. Quest (Tang et al. 2024, arXiv:2406.10774) chooses pages
    while decoding only, after a dense prompt; here each query of a prompt chooses too, as its token
    would when decoded. (The own page is always read by the authors' kernels too; in their
    evaluation in PyTorch it has to be chosen as others are.) Pages without visible keys are never
    chosen; ties go to the earlier page. O(T top page + T S / page) time, O(T + S) memory. Raises
    NotImplementedError without Causal, on masks but Causal and Padding or on a bias, ValueError for
    settings below 1.
    """
    return Quest(page=page, top=top)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quest(Chosen):
    """Softmax over the `top` pages that may hold the largest scores (Quest, Tang et al. 2024).

    A decoding step reads two vectors per page and the keys of `top` pages. The authors keep a
    model's first two layers dense: give an encoder a tuple of mechanisms.
    """

    requires: ClassVar = (Causal,)
    joins: ClassVar = (jnp.minimum, jnp.maximum)
    asks: ClassVar = 2
    page: int = 16
    top: int = 32

    def __post_init__(self):
        check_count("page", self.page)
        check_count("top", self.top)

    @property
    def size(self):
        return self.page

    def summary(self, blocks: Blocks):
        seen = blocks.seen[..., None]
        low = jnp.where(seen, blocks.k, jnp.inf).min(-2)
        high = jnp.where(seen, blocks.k, -jnp.inf).max(-2)
        empty = ~blocks.some[..., None]
        return tuple(jnp.where(empty, 0, x) for x in (low, high))

    def of_key(self, k):
        return k, k

    def score(self, q, summary):
        dot = lambda q, x: jnp.einsum("mtgh,mbh->mtgb", q, x, precision="highest")
        low, high = summary
        return dot(jnp.minimum(q, 0), low) + dot(jnp.maximum(q, 0), high)

    @classmethod
    def examples(cls):
        return cls(page=4, top=2), cls(page=3, top=9)
