"""What `moba` and `quest` share: each query of each head chooses blocks by their summaries, for a
whole sequence at once or, from a state that keeps the summaries, token by token."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attn import _cache
from attn._axes import aligned
from attn._blockwise import blockwise
from attn._chunks import by_chunks, chunk_size
from attn._core import attend_materialized, dense_scores, isolate, masked_softmax
from attn._explicit import auto_inside
from attn._forms import visited_scores
from attn._inputs import check_kept, check_qkv, check_state, refuse_rest
from attn._prompt import check_prompt
from attn._settings import check_room_for
from attn._tokens import even_blocks, no_output
from attn._wide import wide
from attn.masks import FULL, Causal, Padding
from attn.mechanism import Mechanism
from attn.sparse import _sorted
from attn.sparse._select import (
    Blocks,
    best,
    by_group,
    by_query,
    last_seen,
    narrow,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pages:
    """All keys and values in a cache of whole blocks, and the summary of each block."""

    cache: _cache.Cache
    summary: tuple[Float[Array, "*B K pages W"], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen(Mechanism):
    """Softmax over the `top` blocks of `size` keys that each query of each head chooses by `score`,
    from a `summary` of each block. O(T top size + T S / size) time, O(T + S) memory.

    Under `Causal` a query's own block is always one of them, without a score, since it may hold
    future keys, and the others lie before it.
    """

    honours: ClassVar = (Causal, Padding)
    # how each part of a summary takes one more key
    joins: ClassVar[tuple[Callable, ...]]
    asks: ClassVar[int] = 1  # products of a query with the summary of a block
    top: ClassVar[int]  # a field of each variant

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many keys a block has."""

    @abc.abstractmethod
    def summary(self, blocks: Blocks) -> tuple[Float[Array, "M blocks W"], ...]:
        """The arrays that summarise each block of keys."""

    @abc.abstractmethod
    def of_key(self, k: Float[Array, "*B H"]) -> tuple[Float[Array, "*B W"], ...]:
        """The summary of a block of one key, to be joined with others by `joins`."""

    @abc.abstractmethod
    def score(self, q: Float[Array, "M t G H"], summary) -> Float[Array, "M t G blocks"]:
        """The score of each block for each query, in float32."""

    def choose(self, q, summary, some, last, causal: bool) -> Int[Array, "M t G n"]:
        """The blocks chosen by queries that see keys up to `last` [M, t], of those with `some`."""
        block = jnp.arange(some.shape[-1])[None, None, None]
        own = (last // self.size)[..., None, None]
        may, must = (block < own, block == own) if causal else (own >= 0, False)
        return best(self.score(*narrow(q), summary), some[:, None, None] & may, must, self.top)

    def _blocks(self, k, v, padding):
        """The keys and values in blocks, and the summary of each."""
        blocks = Blocks.of(k, v, padding, self.size)
        (k,) = narrow(blocks.k)
        return blocks, self.summary(dataclasses.replace(blocks, k=k))

    def of_rows(self, q, last, chosen, blocks: Blocks) -> Float[Array, "M t G D"]:
        """The output of queries [M, t, G, H] that see keys up to `last` [M, t] of the blocks
        `chosen` [M, t, G, n]."""
        M, t, G, H = q.shape
        q, poison = isolate(wide(q))
        split = lambda x: x.reshape(M, t * G, *x.shape[3:])  # each query head chooses by itself
        each = jnp.broadcast_to(last[..., None], (M, t, G))
        out = blocks.attend(split(q * H**-0.5)[:, :, None], split(chosen), split(each))
        poison = jnp.where(blocks.meets(chosen, each), poison, 0)
        return out.reshape(M, t, G, out.shape[-1]) + poison[..., None]

    @functools.partial(jax.jit, static_argnums=(0, 4))  # for calls outside of jit
    def attend(self, q, k, v, causal: bool, padding, last) -> Float[Array, "*B T N D"]:
        """The output of queries that see keys up to `last` [M, T], for checked arguments."""
        *batch, T, N, H = q.shape
        S, K, D = *k.shape[-3:-1], v.shape[-1]
        if 0 in (*batch, T, S, D):
            return no_output(q, v)
        blocks, summary = self._blocks(k, v, padding)
        rows = by_group(q, K), last[..., None, None]
        heads, count = math.prod(batch) * N, blocks.k.shape[1]

        def choose(_, rows):
            q, last = isolate(wide(rows[0]))[0], rows[1][..., 0, 0]
            return self.choose(q, summary, blocks.some, last, causal)

        def meet(_, rows):
            (q, last), chosen = rows
            return self.of_rows(q, last[..., 0, 0], chosen, blocks)

        chosen = by_chunks(choose, rows, T, chunk_size(heads * count, T))
        out = by_chunks(meet, (rows, chosen), T, self._at_once(T, heads, count, max(H, D)))
        return by_query(out, tuple(batch), K).astype(jnp.result_type(q))

    def _at_once(self, T: int, heads: int, blocks: int, width: int) -> int:
        """How many queries attend to their blocks at once."""
        size = chunk_size(heads * 3 * self.top * width, T)
        return max(size, _sorted.least_queries(blocks, self.top))

    def flops(self, T, S, N, K, H, D):
        if 0 in (T, S, D):
            return 0
        if not self._chooses(S):
            mask = Causal() if Causal in self.requires else FULL
            return 2 * visited_scores(mask, T, S, N) * N * (H + D)
        blocks = -(-S // self.size)
        count, size = even_blocks(T, self._at_once(T, N, blocks, max(H, D)))
        met = _sorted.flops(K, size * (N // K), 1, self.top, blocks, self.size, H, D)
        return 2 * T * N * blocks * H * self.asks + count * met

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        mask, sees = self._checked(q, k, v, mask, bias)
        if not self._chooses(k.shape[-3]):
            out, _ = blockwise(*map(wide, (q, k, v)), mask, None, scale=None)
            return out.astype(jnp.result_type(q))
        return self.attend(q, k, v, *sees)

    def _chooses(self, S: int) -> bool:
        """Whether there are more blocks than every query takes."""
        return -(-S // self.size) > self.top

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        return attend_materialized(*self._kept(q, k, v, mask, bias), v)

    def weights(self, q, k, *, mask=FULL, bias=None):
        return masked_softmax(*self._kept(q, k, k, mask, bias))

    def _checked(self, q, k, v, mask, bias):
        """The mask, and (causal, padding, last), which decide what keys are visible."""
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*self.honours)
        refuse_rest(self.name, rest, bias, self.honours)
        if causal is None and Causal in self.requires:
            raise NotImplementedError(
                f"mask: {self.name} is defined with Causal alone: a query chooses among the blocks "
                "before its own. Use mask=Causal(), or moba, which has a bidirectional form"
            )
        (*batch, T, _, _), (S, K) = q.shape, k.shape[-3:-1]
        return mask, (causal is not None, padding, last_seen(T, S, K, causal, padding, batch))

    def _kept(self, q, k, v, mask, bias):
        """The scores [*B, N, T, S] and which of them are kept."""
        mask, (causal, padding, last) = self._checked(q, k, v, mask, bias)
        batch, (S, K) = q.shape[:-3], k.shape[-3:-1]
        blocks, summary = self._blocks(k, k, padding)
        rows = by_group(isolate(wide(q))[0], K)
        chosen = self.choose(rows, summary, blocks.some, last, causal)
        of_key = jnp.arange(S) // self.size
        among = jnp.equal(*aligned(chosen[..., None], of_key)).any(-2)  # [M, T, G, S]
        s, seen = dense_scores(q, k, mask, None, None, None)
        return s, seen & jnp.moveaxis(by_query(among, batch, K), -2, -3)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        pages = -(-max_length // self.size)
        size = pages * self.size  # whole blocks, which a step finds without a copy
        cache = _cache.empty(batch, num_kv_heads, head_dim, value_dim, size, dtype)
        key = jax.ShapeDtypeStruct((*batch, num_kv_heads, head_dim), cache.k.dtype)
        one = jax.eval_shape(self.of_key, key)
        return Pages(
            cache, tuple(jnp.zeros((*x.shape[:-1], pages, x.shape[-1]), x.dtype) for x in one)
        )

    def prefill(self, q, k, v, *, max_length):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal())
        (*batch, _, K, _), pages = k.shape, -(-max_length // self.size)

        def put(x, one):
            x = jnp.pad(x, ((0, 0), (0, pages - x.shape[1]), (0, 0)))
            return x.reshape(*batch, K, pages, x.shape[-1]).astype(one.dtype)

        summary = self.summary(Blocks.of(k, v, None, self.size))
        summary = tuple(map(put, summary, jax.eval_shape(self.of_key, k)))
        return Pages(_cache.fill(k, v, pages * self.size), summary), out

    def step(self, state, q, k, v):
        check_state(state, Pages, q)
        check_qkv(q, k, v, FULL)
        _cache.check_one_token(q)
        pages = state.summary[0].shape[-2]
        check_kept(state.cache.k.shape[-2], pages * self.size, f"tokens in {pages} blocks")
        last, cache = state.cache.length, _cache.append(state.cache, k, v)
        *batch, K, _, _ = cache.k.shape
        M, now = math.prod(batch) * K, last // self.size

        def grown(x, new, join):
            old, new = lax.dynamic_slice_in_dim(x, now, 1, -2), new.astype(x.dtype)
            new = jnp.where(last % self.size == 0, new, join(old, new))
            return lax.dynamic_update_slice_in_dim(x, new, now, x.ndim - 2)

        new = self.of_key(jnp.swapaxes(isolate(k)[0], -3, -2))  # [*B, K, 1, .]
        summary = tuple(map(grown, state.summary, new, self.joins))
        blocks = Blocks.cached(cache, self.size)
        known = narrow(*(x.reshape(M, pages, x.shape[-1]) for x in summary))
        rows, last = by_group(q, K), jnp.broadcast_to(last, (M, 1))
        chosen = self.choose(isolate(wide(rows))[0], known, blocks.some, last, True)
        out = self.of_rows(rows, last, chosen, blocks)
        out = _cache.unless_forgotten(cache, by_query(out, tuple(batch), K))
        return Pages(cache, summary), out.astype(jnp.result_type(q))
