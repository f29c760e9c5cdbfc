"""Forgetting attention (Lin et al. 2025, arXiv:2503.02130): softmax with data-dependent decay."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn import _cache
from attn._arrays import check_floats
from attn._axes import aligned
from attn._blockwise import blockwise
from attn._core import dense_attention, dense_weights
from attn._decay import Decay
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._prompt import check_prompt
from attn._requests import check_requests
from attn._running import between, followed, running
from attn._settings import check_block, check_flags
from attn._wide import wide, wide_dtype
from attn.masks import FULL, TERMS, And, Causal, Mask, Or, Padding, Segments
from attn.masks.language import joined
from attn.mechanism import Mechanism
from attn.norms import HeadNorm


@auto_inside
def forgetting_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    log_decay: Float[Array, "*B S N"],
    mask: Mask = FULL,
    bias=None,
    scale: float | Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(scale q_i k_j + sum_{j < l <= i} log_decay_l) v_j per head: FoX's forget gate f is
    exp(log_decay), at most 1, one for each token and query head.

    The paper is causal; here a key after its query decays by the sum over i < l <= j, so that the
    bidirectional form is symmetric. Under `Segments` and `Padding` joined by &, only the gates of
    the same document and of keys that are not padding count. Query i is at key position i, or i +
    offset under `Causal(offset)`, also inside a |; there are no gates before the first or after the
    last key. A log_decay below -1e5, even -inf, counts as -1e5; a NaN or one above 0 makes rows NaN
    that see keys on the other side of it. O(T S) time, O(T + S) memory: the decay is a bias
    computed from running sums, block by block. Raises NotImplementedError for a `bias` and for a |
    of different `Causal` offsets, ValueError for a log_decay of another shape, TypeError for one
    that is not of floats.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    _refuse(bias)
    check_block(block)
    bias = _decay(q, k, log_decay, mask)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return blockwise(q, k, v, mask, bias, scale=scale, block=block, dropout=dropout)[0]


def _refuse(bias):
    if bias is not None:
        raise NotImplementedError(
            f"bias: forgetting makes its own from log_decay and takes no {type(bias).__name__}; "
            "use softmax"
        )


def _decay(q, k, log_decay, mask) -> Decay | None:
    T, S = q.shape[-3], k.shape[-3]
    _check_decay(q, k, log_decay)
    if S == 0:
        return None
    (padding,), _ = mask.take(Padding)
    segments = [term for term in joined(mask) if isinstance(term, Segments)]
    log_decay = wide(log_decay).astype(wide(q).dtype)
    if padding is not None:
        seen, log_decay = aligned(padding.seen_keys(S)[..., None], log_decay)
        log_decay = jnp.where(seen, log_decay, 0)
    at = jnp.clip(jnp.arange(T) + _offset(mask), 0, S - 1)
    if segments:
        return _within(segments, log_decay, at)
    total = running(log_decay)
    return Decay(jnp.take(total, at, axis=-3), total)


def _within(
    segments: list[Segments], log_decay: Float[Array, "*B S N"], at: Int[Array, " T"]
) -> Decay:
    """Running sums by document (of tokens that share all their ids), over keys and, at their
    positions, queries with gates of 0."""
    *batch, S, _ = log_decay.shape
    n, L = len(batch), S + len(at)
    every = lambda x: jnp.broadcast_to(x, (*batch, x.shape[-1]))
    ids = [jnp.concatenate([*map(every, each.ids[::-1])], -1) for each in segments]
    # a query comes after the key at its place
    place = every(jnp.concatenate([jnp.arange(S), at])), every(jnp.arange(L))
    order = jax.lax.sort((*ids, *place), num_keys=len(ids) + 2)[-1]
    take = lambda x, at: jnp.take_along_axis(x, at.reshape(at.shape + (1,) * (x.ndim - n - 1)), n)
    gates = jnp.pad(log_decay, [(0, 0)] * n + [(0, L - S), (0, 0)])
    total = take(running(take(gates, order)), jnp.argsort(order, axis=-1))
    return Decay(total[..., S:, :, :], total[..., :S, :, :])


def _offset(mask) -> int:
    """The position of query 0: the offset of the `Causal` joined by &, else that of all those
    inside a |. A ~Causal does not count: it hides the past."""
    (causal,), _ = mask.take(Causal)
    offsets = _offsets(mask if causal is None else causal) or {0}
    if len(offsets) > 1:
        raise NotImplementedError(
            "mask: forgetting cannot tell where queries stand under a | of Causal with offsets "
            f"{sorted(offsets)}; give them one offset, or join the one that is meant by &"
        )
    return offsets.pop()


def _offsets(mask) -> set[int]:
    if isinstance(mask, And | Or):
        return set().union(*map(_offsets, mask.mask_terms))
    return {mask.offset} if isinstance(mask, Causal) else set()


def _check_decay(q, k, log_decay):
    check_floats(log_decay=log_decay)
    wanted = (*k.shape[:-2], q.shape[-2])
    if log_decay.shape != wanted:
        raise ValueError(f"log_decay: expected {list(wanted)}, got {list(log_decay.shape)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The keys and values so far, and the running sums of log_decay at each of them."""

    cache: _cache.Cache
    total: Float[Array, "*B L N 3"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forgetting(Mechanism):
    """Softmax whose scores have a learned, data-dependent decay (FoX, Lin et al. 2025).

    `output_gate` "sigmoid" and `output_norm` are those of the paper's Pro layer, whose shift of
    keys and values is left out. Its norms scale each channel of each head, a layer's here (that of
    q and k, `qk_norm`, too) the channels of all heads alike.
    """

    honours: ClassVar = TERMS
    dropout_rate: float = 0.0
    block: int | None = None
    output_gate: str | None = None
    output_norm: bool = False

    @property
    def head_norm(self) -> HeadNorm | None:
        return HeadNorm() if self.output_norm else None

    def __post_init__(self):
        check_flags(self)
        check_requests(self)
        check_rate(self.dropout_rate)
        check_block(self.block)

    def gates(self, *, num_heads, num_kv_heads, head_dim):
        return {"log_decay": (num_heads,)}

    def __call__(self, q, k, v, *, log_decay, mask=FULL, bias=None, dropout_key=None) -> Array:
        return forgetting_attention(
            q,
            k,
            v,
            log_decay=log_decay,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            block=self.block,
        )

    def reference(self, q, k, v, *, log_decay, mask=FULL, bias=None, dropout_key=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        _refuse(bias)
        return dense_attention(
            q,
            k,
            v,
            mask=mask,
            bias=_decay(q, k, log_decay, mask),
            dropout=dropout_of(self, dropout_key, q, k),
        )

    def weights(self, q, k, *, log_decay, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        _refuse(bias)
        return dense_weights(q, k, mask=mask, bias=_decay(q, k, log_decay, mask))

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ) -> State:
        cache = _cache.empty(batch, num_kv_heads, head_dim, value_dim, max_length, dtype)
        sums = wide_dtype(dtype)
        return State(cache, jnp.zeros((*batch, max_length, num_heads, 3), sums))

    def prefill(self, q, k, v, *, max_length, log_decay) -> tuple[State, Any]:
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), log_decay=log_decay)
        total = running(wide(log_decay).astype(wide(q).dtype))
        after = [(0, 0)] * (total.ndim - 3) + [(0, max_length - total.shape[-3]), (0, 0), (0, 0)]
        return State(_cache.fill(k, v, max_length), jnp.pad(total, after)), out

    def step(self, state, q, k, v, *, log_decay):
        check_state(state, State, q)
        check_qkv(q, k, v, FULL)
        _check_decay(q, k, log_decay)
        _cache.check_one_token(q)
        _cache.check_token(state.cache, k, v)
        L, N = state.total.shape[-3:-1]
        if q.shape[-2] != N:
            raise ValueError(f"q: expected {N} heads to go with state, got {q.shape[-2]}")
        at = state.cache.length
        before = jax.lax.dynamic_slice_in_dim(state.total, (at - 1) % L, 1, axis=-3)
        now = followed(jnp.where(at == 0, 0, before), wide(log_decay))
        total = jax.lax.dynamic_update_slice_in_dim(state.total, now, at % L, axis=-3)
        first = lambda x: jnp.moveaxis(x, -1, 0)
        bias = jnp.swapaxes(between(first(now), first(total)), -1, -2)  # [*B, N, L]
        bias = bias[..., None, :]
        cache, out = _cache.step(state.cache, q, k, v, bias=bias)
        return State(cache, total), _cache.unless_forgotten(cache, out).astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return (cls(block=8, dropout_rate=0.2),)
