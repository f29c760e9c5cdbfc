"""Quest (Tang et al. 2024, arXiv:2406.10774): decoding reads the pages that may score highest."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn import _cache
from attn._core import check_count, check_qkv, isolate, wide
from attn.masks import FULL, Causal, Mask
from attn.sparse._select import Blocks, Chosen, by_group, by_query, narrow


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
    before it of the largest sum_h max(q_h low_h, q_h high_h).

    low and high are the least and the largest of each channel over a page's keys, so that the sum
    is at least the page's largest q . k. Quest (Tang et al. 2024, arXiv:2406.10774) chooses pages
    while decoding only, after a dense prompt; here each query of a prompt chooses too, as its
    token would when decoded. Pages without seen keys are never chosen; equal sums go to the earlier
    page. O(T top page + T S / page) time, O(T + S) memory. Raises NotImplementedError without
    Causal, on masks but Causal and Padding or on a bias, ValueError for settings below 1.
    """
    return Quest(page=page, top=top)(q, k, v, mask=mask, bias=bias)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pages:
    """All keys and values, and the least and largest number of each channel over each page."""

    cache: _cache.Cache
    low: Float[Array, "*B K pages H"]
    high: Float[Array, "*B K pages H"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quest(Chosen):
    """Softmax over the `top` pages that may hold the largest scores (Quest, Tang et al. 2024).

    A decoding step reads two vectors a page and the keys of `top` pages.
    """

    requires: ClassVar = (Causal,)
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

    def score(self, q, summary):
        dot = lambda q, x: jnp.einsum("mtgh,mbh->mtgb", q, x, precision="highest")
        low, high = summary
        return dot(jnp.minimum(q, 0), low) + dot(jnp.maximum(q, 0), high)

    def flops(self, T, S, N, K, H, D):
        pages = -(-S // self.page)
        return 2 * T * N * (2 * pages * H + min(self.top * self.page, S) * (H + D))

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        pages = -(-max_length // self.page)
        size = pages * self.page  # whole pages, which a step finds without a copy
        cache = _cache.empty(batch, num_kv_heads, head_dim, value_dim, size, dtype)
        bound = jnp.zeros((*batch, num_kv_heads, pages, head_dim), dtype)
        return Pages(cache, bound, bound)

    def prefill(self, q, k, v, *, max_length):
        out = self(q, k, v, mask=Causal())
        pages = -(-max_length // self.page)
        cache = _cache.fill(k, v, pages * self.page)
        low, high = self.summary(Blocks.of(k, v, None, self.page))

        def put(x):
            x = x[:, -pages:] if x.shape[1] > pages else x
            x = jnp.pad(x, ((0, 0), (0, pages - x.shape[1]), (0, 0)))
            return x.reshape(*cache.k.shape[:-2], pages, -1).astype(k.dtype)

        return Pages(cache, put(low), put(high)), out

    def step(self, state, q, k, v):
        check_qkv(q, k, v, FULL)
        if q.shape[-3] != 1:
            raise ValueError(f"q: expected one token [*B, 1, N, H], got {list(q.shape)}")
        last, cache = state.cache.length, _cache.append(state.cache, k, v)
        *batch, K, L, _ = cache.k.shape
        pages, now = L // self.page, last // self.page
        new = jnp.swapaxes(isolate(k)[0], -3, -2).astype(state.low.dtype)  # [*B, K, 1, H]

        def widen(bound, further):
            old = lax.dynamic_slice_in_dim(bound, now, 1, -2)
            new_page = jnp.where(last % self.page == 0, new, further(old, new))
            return lax.dynamic_update_slice_in_dim(bound, new_page, now, bound.ndim - 2)

        low, high = widen(state.low, jnp.minimum), widen(state.high, jnp.maximum)
        M = math.prod(batch) * K
        paged = lambda x: x.reshape(M, pages, self.page, *x.shape[len(batch) + 2 :])
        blocks = Blocks(*map(paged, (cache.k, cache.v, cache.poison)), None)
        bounds = narrow(*(x.reshape(M, pages, -1) for x in (low, high)))
        some = jnp.ones((M, pages), bool)
        rows, last = by_group(q, K), jnp.broadcast_to(last, (M, 1))
        chosen = self.choose(isolate(wide(rows))[0], bounds, some, last, True)
        out = self.of_rows(rows, last, chosen, blocks)
        out = _cache.unless_forgotten(cache, by_query(out, tuple(batch), K))
        return Pages(cache, low, high), out.astype(q.dtype)

    @classmethod
    def examples(cls):
        return cls(page=4, top=2), cls(page=3, top=9)
