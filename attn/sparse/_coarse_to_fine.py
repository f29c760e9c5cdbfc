"""Attention to compressed runs, and to the blocks that weigh most by them: NSA's far branches."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn._chunks import BUDGET, by_chunks, chunk_size
from attn._core import isolate, isolated_softmax, masked_softmax, scaled
from attn._turns import held
from attn.sparse import _sorted
from attn.sparse._compress import Runs
from attn.sparse._select import Blocks, best, by_group, by_query, narrow


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoarseToFine:
    """The settings of `NSA` that say which blocks a query selects."""

    compression_block: int
    compression_stride: int
    selection_block: int
    selected: int
    initial: int
    local: int

    @functools.partial(jax.jit, static_argnums=(0, 2))  # for calls outside of jit
    def attend(
        self,
        q: Float[Array, "*B T N H"],
        K: int,
        blocks: Blocks,
        runs: Runs,
        last: Int[Array, "M T"],
    ) -> tuple[Float[Array, "*B T N D"], Float[Array, "*B T N D"]]:
        """The compressed and the selected branch, of queries each of which stands at key `last`."""
        (*batch, T, N, H), (_, count, _, D) = q.shape, blocks.v.shape

        def attend(_, rows):
            q, q_poison, last = rows
            seen, coarse = _coarse(rows, runs)
            last = last[..., 0, 0]
            chosen = self.choose(q, runs.ranked, seen, last, blocks.some)
            fine = blocks.attend(q, chosen, last)
            fine = fine + jnp.where(blocks.meets(chosen, last)[..., None, None], q_poison, 0)
            return jnp.concatenate([coarse, fine], -1)

        size = self.at_once(T, math.prod(batch) * N, max(H, D), count, runs.k.shape[1])
        out = by_query(by_chunks(attend, _rows(q, K, last), T, size), tuple(batch), K)
        return out[..., :D], out[..., D:]

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def compress(self, q, K: int, runs: Runs, last) -> Float[Array, "*B T N D"]:
        """The compressed branch alone."""
        *batch, T, N, _ = q.shape
        attend = lambda _, rows: _coarse(rows, runs)[1]
        size = chunk_size(math.prod(batch) * N * max(1, runs.k.shape[1]), T)
        return by_query(by_chunks(attend, _rows(q, K, last), T, size), tuple(batch), K)

    def selects(self, blocks: int) -> bool:
        """Whether there are more blocks than every query selects."""
        return blocks > self.selected

    def at_once(self, T: int, heads: int, width: int, blocks: int, runs: int) -> int:
        """How many queries are processed at once, against the runs and their blocks."""
        known = max(1, runs)
        size = chunk_size(heads * max(3 * self.selected * width, known), T)
        # enough for blocks to meet full tiles, as far as the scores of runs have room
        least = _sorted.least_queries(blocks, self.selected)
        return max(size, min(least, 2 * held(BUDGET) // max(1, heads * known)))

    def choose(
        self,
        q: Float[Array, "M t G H"],
        ranked: Float[Array, "M runs H"],
        seen: Bool[Array, "M t runs"],
        last: Int[Array, "M t"],
        some: Bool[Array, "M blocks"],
    ) -> Int[Array, "M t n"]:
        """The blocks selected by the queries of each key head."""
        q, ranked = narrow(q, ranked)
        s = jnp.einsum("mtgh,mch->mtgc", q, ranked, precision="highest")
        w = masked_softmax(s, seen[:, :, None]).sum(2)
        # each step of a block carries the weights of the runs that it is a part of
        d, steps = self.compression_stride, self.compression_block // self.compression_stride
        count = some.shape[-1] * (self.selection_block // d)
        w = jnp.pad(w, [(0, 0), (0, 0), (steps - 1, count - w.shape[-1])])
        w = sum(w[..., n : n + count] for n in range(steps))
        w = w.reshape(*w.shape[:-1], some.shape[-1], self.selection_block // d).sum(-1)
        block = jnp.arange(some.shape[-1])[None, None]
        own = (last // self.selection_block)[..., None]
        must = (block < self.initial) | (block > own - self.local)
        return best(w, some[:, None] & (block <= own), must & (block <= own), self.selected)


def _rows(q, K: int, last):
    """Queries, scaled and 0 where not finite, their poison, and the key at which each stands."""
    clean, q_poison = isolate(scaled(q, None))
    return by_group(clean, K), by_group(q_poison[..., None], K), last[..., None, None]


def _coarse(rows, runs: Runs):
    """Which runs the queries of `_rows` see [M, t, runs], and what they read there [M, t, G, D]."""
    q, q_poison, last = rows
    seen = runs.complete(last[..., 0, 0])
    s = jnp.einsum("mtgh,mch->mtgc", q, runs.k)
    w, lost = isolated_softmax(s, seen[:, :, None])
    lost = lost + jnp.where(seen, runs.poison[:, None], 0).sum(-1)[..., None, None]
    lost = lost + jnp.where(seen.any(-1)[..., None, None], q_poison, 0)
    return seen, jnp.einsum("mtgc,mcd->mtgd", w, runs.v) + lost
