"""MoBA (Lu et al. 2025, arXiv:2502.13189): each query attends to the blocks it scores highest."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._core import check_count, check_qkv
from attn.masks import FULL, Causal, Mask
from attn.sparse._select import Blocks, Chosen


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
    block is always one of the `top`, causally masked inside, and the others lie before it: its mean
    would hold keys of the future and is not used. Without `Causal`, which the paper always has, all
    blocks are chosen by their means. Means are those of seen keys; blocks without any are never
    chosen. Equal scores go to the earlier block. O(T top block_size) time for the blocks and
    O(T S / block_size) for choosing them, O(T + S) memory. Raises NotImplementedError on masks but
    Causal and Padding or on a bias, ValueError for settings below 1.
    """
    return MoBA(block_size=block_size, top=top)(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoBA(Chosen):
    """Softmax over the `top` blocks that each query scores highest (MoBA, Lu et al. 2025).

    Decodes with a cache of all keys, of whose blocks a step takes the means again.
    """

    block_size: int = 64
    top: int = 3

    def __post_init__(self):
        check_count("block_size", self.block_size)
        check_count("top", self.top)

    @property
    def size(self):
        return self.block_size

    def summary(self, blocks: Blocks) -> Float[Array, "M blocks H"]:
        count = jnp.maximum(blocks.seen.sum(-1), 1).astype(blocks.k.dtype)
        return blocks.k.sum(-2) / count[..., None]

    def score(self, q, summary):
        return jnp.einsum("mtgh,mbh->mtgb", q, summary, precision="highest")

    def flops(self, T, S, N, K, H, D):
        blocks = -(-S // self.block_size)
        return 2 * T * N * (blocks * H + min(self.top * self.block_size, S) * (H + D))

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)

    def prefill(self, q, k, v, *, max_length):
        return _cache.fill(k, v, max_length), self(q, k, v, mask=Causal())

    def step(self, state, q, k, v):
        check_qkv(q, k, v, FULL)
        last = jnp.broadcast_to(state.length, (math.prod(k.shape[:-3]) * k.shape[-2], 1))
        attend = lambda q, k, v, mask: self.attend(q, k, v, True, mask, last)
        return _cache.decode(state, attend, q, k, v)

    @classmethod
    def examples(cls):
        return cls(block_size=4, top=2), cls(block_size=3, top=9)
