"""Which pairs hashing shows: those near each other within one bucket, in any of several rounds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn._tokens import seen_tokens
from attn.masks import Causal, Padding
from attn.sparse import _buckets

# of one round: each key's chunk and its rank in the bucket; each query's chunk and the one before
Codes = tuple[Int[Array, "*r S"], Int[Array, "*r S"], Int[Array, "*r Tg"], Int[Array, "*r Tg"]]


@dataclasses.dataclass(frozen=True)
class Hashed:
    """Which query rows (as `head_rows` orders them) see which keys, for the chunked form and for
    the definition alike."""

    codes: Codes  # [b, K, rounds, ...]
    alone: Int[Array, "b Tg"]  # the key that a query sees if it sees nothing else, S for none
    at: Int[Array, " Tg"]  # the key at which a query stands, -1 before all, S after all
    own: Int[Array, " Tg"]  # the key that is of the query's own token
    causal: bool
    shared_qk: bool

    @classmethod
    def of(
        cls,
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B S K H"],
        causal: Causal | None,
        padding: Padding | None,
        rotations: Float[Array, "K R H half"],
        chunk: int,
        shared_qk: bool,
        at: Int[Array, " T"] | None = None,
    ) -> "Hashed":
        """`at` are the queries' positions, by default those that `causal` gives."""
        *batch, T, N, _ = q.shape
        S, K = k.shape[-3:-1]
        if at is None:
            at = jnp.arange(T, dtype=jnp.int32) + (0 if causal is None else causal.offset)
            at = jnp.clip(at, -1, S)
        own = jnp.arange(T, dtype=jnp.int32) if T == S else at
        live, seen = map(_buckets.in_rows, seen_tokens(padding, tuple(batch), T, S))
        at, own, live = (jnp.repeat(x, N // K, axis=-1) for x in (at, own, live))
        of_round = functools.partial(_codes, at=at, causal=causal is not None, chunk=chunk)
        over_rounds = jax.vmap(of_round, in_axes=(0, 0, None, None))
        over_heads = jax.vmap(over_rounds, in_axes=(0, 0, None, None))
        codes = jax.vmap(over_heads)(_bucket(k, rotations), _bucket(q, rotations), seen, live)
        there = live & jax.vmap(_buckets.pick, in_axes=(0, None))(seen, own)
        there = there if causal is None else there & (own <= at)[None]
        alone = jnp.where(there & shared_qk, own[None], S)
        return cls(codes, alone, at, own, causal is not None, shared_qk)

    def hidden(self, row: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether key j is hidden from a query row whatever their buckets."""
        here = lambda x: _buckets.pick(x, row)
        later = j > here(self.at) if self.causal else j < 0
        return later | (j == here(self.own)) if self.shared_qk else later


def _bucket(x, rotations) -> Int[Array, "b K R Lg"]:
    """h(x) = argmax([x R; -x R]) in each round."""
    x = _buckets.selecting(_buckets.head_rows(x, len(rotations)))
    # argmax does not depend on the length of x: there is nothing to normalise
    turn = lax.stop_gradient(rotations).astype(jnp.float32)
    y = jnp.einsum("bklh,krhn->bkrln", x, turn, precision="highest")
    return jnp.argmax(jnp.concatenate([y, -y], -1), -1).astype(jnp.int32)


def _codes(keys, queries, seen, live, *, at, causal, chunk) -> Codes:
    """The codes of one round, from the buckets of its keys [S] and queries [Tg]."""
    S = len(keys)
    group = jnp.concatenate([jnp.where(seen, keys, -1), jnp.where(live, queries, -1)])
    # a query comes just after the key at which it stands
    order = jnp.concatenate([2 * jnp.arange(S, dtype=jnp.int32), 2 * at + 1])
    found = _buckets.chunks(group, order, jnp.arange(len(group)) < S, chunk)
    chunk_of, before, after, rank = found
    last = chunk_of if causal else jnp.where(chunk_of < 0, after, chunk_of)
    return chunk_of[:S], rank[:S], last[S:], before[S:]


def by_round(
    codes: Codes, rows: Int[Array, "*c m"], keys: Int[Array, "*c w"]
) -> list[Bool[Array, "*c m w"]]:
    """Whether each round shows the pairs of `rows` and `keys`, from the codes of one key head."""

    def shown(key_chunk, rank, last, before):
        key_chunk = _buckets.pick(key_chunk, keys, -1)[..., None, :]
        last, before = (_buckets.pick(x, rows, -1)[..., :, None] for x in (last, before))
        return (key_chunk >= 0) & ((key_chunk == last) | (key_chunk == before))

    return [shown(*code) for code in zip(*codes)]
