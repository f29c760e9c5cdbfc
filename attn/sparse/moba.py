"""MoBA (Lu et al. 2025, arXiv:2502.13189): each query attends to the blocks it scores highest."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._settings import check_count
from attn._wide import wide
from attn.masks import FULL, Mask
from attn.sparse._chosen import Chosen
from attn.sparse._select import Blocks


def moba_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    block_size: int = 64,
    top: int = 3,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H)) v over the keys of the `top` blocks of largest q . mean(k of block).

    Mixture of block attention (Lu et al. 2025, arXiv:2502.13189). Under `Causal` the query's own
    block is always one of the `top`, causally masked inside, and the others lie before it; its own
    mean, which would contain future keys, is not used. Without `Causal`, which the paper always
    has, all blocks are chosen by their means. Means are over visible keys; blocks without any are
    never chosen. Ties go to the earlier block. O(T top block_size) time for the blocks and
    O(T S / block_size) for choosing them, O(T + S) memory. Raises NotImplementedError on masks but
    Causal and Padding or on a bias, ValueError for settings below 1.
    """
    return MoBA(block_size=block_size, top=top)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoBA(Chosen):
    """Softmax over the `top` blocks that each query scores highest (MoBA, Lu et al. 2025).

    A decoding step reads one vector per block and the keys of `top` blocks.
    """

    joins: ClassVar = (jnp.add, jnp.add)
    block_size: int = 64
    top: int = 3

    def __post_init__(self):
        check_count("block_size", self.block_size)
        check_count("top", self.top)

    @property
    def size(self):
        return self.block_size

    def summary(self, blocks: Blocks):
        return blocks.k.sum(-2), blocks.seen.sum(-1, keepdims=True).astype(blocks.k.dtype)

    def of_key(self, k):
        return wide(k), jnp.ones((*k.shape[:-1], 1), wide(k).dtype)

    def score(self, q, summary):
        total, count = summary
        s = jnp.einsum("mtgh,mbh->mtgb", q, total, precision="highest")
        return s / jnp.maximum(count[..., 0], 1)[:, None, None]

    @classmethod
    def examples(cls):
        return cls(block_size=4, top=2), cls(block_size=3, top=9)
