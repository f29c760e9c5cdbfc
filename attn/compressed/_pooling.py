"""Blocks of tokens pooled into one each, and the decoding state made of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn import _cache
from attn._axes import aligned
from attn._cache import Cache
from attn._core import dense_attention
from attn._tokens import in_blocks
from attn._varying import vary
from attn._wide import float_dtype, wide, wide_dtype
from attn.masks import Padding


def pool(
    x: Float[Array, "*B P C K H"],
    seen: Bool[Array, "*#B P C"],
    kernel: Float[Array, "K C H H"] | None,
) -> Float[Array, "*B P K H"]:
    """The mean of each block's visible tokens, or its strided convolution; x is 0 where hidden."""
    if kernel is not None:
        return jnp.einsum("...pckh,kche->...pke", x, kernel.astype(x.dtype))
    count = jnp.maximum(seen.sum(-1, dtype=jnp.int32), 1).astype(x.dtype)
    return jnp.divide(*aligned(x.sum(-3), count[..., None, None]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PooledState:
    """The complete blocks, pooled, and the tokens of the incomplete one: for L tokens in blocks of
    C no more than K (ceil(L / C) + C) (H + D + 1) numbers per batch row."""

    far: Cache
    near: Cache  # token t at t mod C

    @classmethod
    def empty(
        cls, batch, K: int, H: int, D: int, *, stride: int, max_length: int, dtype
    ) -> "PooledState":
        exact = wide_dtype(float_dtype(dtype))
        blocks, near = _sizes(stride, max_length)
        far = _cache.empty(batch, K, H, D, blocks, exact)
        return cls(far, _cache.empty(batch, K, H, D, near, dtype))

    @classmethod
    def of(cls, k, v, kernels, *, stride: int, max_length: int) -> "PooledState":
        """The state after T tokens at once."""
        n, whole = k.ndim - 3, k.shape[-3] // stride
        cut = lambda x: lax.slice_in_dim(wide(x), 0, whole * stride, axis=n)
        seen = jnp.ones((whole, stride), bool)
        pooled = [pool(in_blocks(cut(x), stride, n), seen, w) for x, w in zip((k, v), kernels)]
        blocks, near = _sizes(stride, max_length)
        return cls(_cache.fill(*pooled, blocks), _cache.fill(k, v, near))

    def step(self, q, k, v, kernels, stride: int) -> tuple["PooledState", Float[Array, "*B 1 N D"]]:
        """One token more, which sees the pooled blocks and its own block's tokens up to itself."""
        t, near = self.near.length, _cache.append(self.near, k, v)
        size, room = near.k.shape[-2], self.far.k.shape[-2]
        there = [jnp.arange(room) < self.far.length, jnp.arange(size) <= t % stride]
        own_k, own_v = map(wide, _cache.tokens(near)[:2])  # as pooled blocks are kept
        far_k, far_v, _ = _cache.tokens(self.far)
        keys, values = (jnp.concatenate(x, -3) for x in ((far_k, own_k), (far_v, own_v)))
        mask = Padding(keys=jnp.concatenate(there))
        out = dense_attention(wide(q), keys, values, mask=mask)
        # past `max_length` the definition sees tokens that were dropped
        out = jnp.where((t // stride > room) | (t % stride >= size), jnp.nan, out)
        state = type(self)(self._after(t, own_k, own_v, kernels, stride), near)
        return state, out.astype(jnp.result_type(q))

    @functools.partial(jax.jit, static_argnums=5)  # for calls outside of jit
    def _after(self, t: Int[Array, ""], k, v, kernels, stride: int) -> Cache:
        """The pooled blocks, including the current one if token t is its last."""
        seen = jnp.ones((1, k.shape[-3]), bool)
        cut = lambda w: w if w is None else w[:, : k.shape[-3]]
        block = lambda x, w: pool(x[..., None, :, :, :], seen, cut(w))
        grow = lambda far: _cache.append(far, *map(block, (k, v), kernels))
        # under shard_map both branches must vary as pooled blocks do, except for their number
        far = self.far
        far = Cache(*vary((far.k, far.v, far.poison), k, v, kernels), far.length)
        return lax.cond((t + 1) % stride == 0, grow, lambda far: far, far)


def _sizes(stride: int, max_length: int) -> tuple[int, int]:
    """The most pooled blocks, and the most tokens of one block, ever kept."""
    return -(-max_length // stride), min(stride, max_length)
