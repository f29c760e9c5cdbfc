"""Memory-compressed attention (Liu et al. 2018, arXiv:1801.10198): keys pooled, O(T S / stride)."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._axes import conjunction
from attn._blockwise import blockwise
from attn._cache import check_one_token
from attn._core import dense_attention, dots
from attn._explicit import auto_inside
from attn._forms import visited_scores
from attn._inputs import check_kept, check_qkv, check_state, refuse_rest
from attn._merge import merged, softmax_part
from attn._prompt import check_prompt
from attn._settings import check_choice, check_count, check_room_for
from attn._tokens import (
    any_past,
    clean,
    in_blocks,
    matrix_of,
    no_output,
    seen_tokens,
    spread,
    to_heads,
)
from attn._wide import wide
from attn.compressed._pooling import PooledState, pool
from attn.masks import FULL, Causal, Mask, Padding
from attn.masks import Array as ArrayMask
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding)
POOLS = ("mean", "conv")


@auto_inside
def pooled_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    stride: int = 3,
    key_kernel: Float[Array, "K C H H"] | None = None,
    value_kernel: Float[Array, "K C D D"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q pool(k)^T / sqrt(H)) pool(v), each block of `stride` tokens pooled into one.

    pool(x)_p is the mean of the visible tokens of block p or, with kernels, the paper's strided
    convolution sum_c x_{p C + c} W_c (C = stride, padding counts as 0). Under `Causal` a query sees
    the pooled blocks before its own, and the unpooled tokens of its own block up to itself: a block
    with a later token is never pooled for it (the paper masks the pooled keys alone, so that the
    first queries see nothing). O(T S / stride) time, O(T stride + S) memory. Honours `Causal` and
    `Padding` joined by `&`, else NotImplementedError. Raises ValueError for kernels of the wrong
    shape or one without the other, and for a stride below 1.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("stride", stride)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("pooled", rest, bias, HONOURS)
    kernels = _checked(stride, k, v, key_kernel, value_kernel)
    (*batch, T, N, _), (S, D) = q.shape, (v.shape[-3], v.shape[-1])
    if 0 in (*batch, T, S, D):
        return no_output(q, v)
    offset = S if causal is None else causal.offset
    if stride > (longest := max(S, T + max(offset, 0))):
        # one block holds everything, and need not be filled up further
        offset = min(offset, S)
        stride = min(longest, T + S)
        kernels = tuple(None if w is None else w[:, :stride] for w in kernels)
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    (queries, q_poison), (keys, k_poison), (values, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    spoilt = to_heads(k_poison + v_poison, N)  # [*B, S, N]
    blocks = lambda x: in_blocks(x, stride, len(batch))
    pooled = [pool(blocks(x), blocks(seen), w) for x, w in zip((keys, values), kernels)]
    there = Padding(keys=blocks(seen).any(-1))
    if causal is None:
        out = blockwise(queries, *pooled, there, None, scale=None)[0]
        met = spoilt.sum(-2, keepdims=True)
    else:
        near = (keys, values, seen, spoilt)
        out, met = _causal(queries, *pooled, there, near, stride, offset)
    out = out + jax.lax.stop_gradient(met + q_poison)[..., None]
    live = asks & seen.any(-1, keepdims=True)
    if causal is not None:
        live = live & any_past(seen, T, offset)
    return jnp.where(live[..., None, None], out, 0).astype(jnp.result_type(q))


def _checked(stride, k, v, key_kernel=None, value_kernel=None):
    if (key_kernel is None) != (value_kernel is None):
        given = "key_kernel" if value_kernel is None else "value_kernel"
        raise ValueError(f"key_kernel, value_kernel: expected both or neither, got {given} alone")
    if key_kernel is not None:
        check_floats(key_kernel=key_kernel, value_kernel=value_kernel)
        for name, w, x in (("key_kernel", key_kernel, k), ("value_kernel", value_kernel, v)):
            want = [x.shape[-2], stride, x.shape[-1], x.shape[-1]]
            if list(w.shape) != want:
                raise ValueError(f"{name}: expected {want}, got {list(w.shape)}")
    return key_kernel, value_kernel


def _causal(q, k, v, there, near, stride, offset):
    """The output, and the poison [*B, T, N]: NaN where a query sees a token that is not finite."""
    *batch, T, N, H = q.shape
    C, K, n = stride, k.shape[-2], len(batch)
    S = near[0].shape[n]
    # query t stands at position t + offset; beyond these bounds it sees the same
    offset = max(min(offset, S + C), -T - C)
    first = offset // C  # the block of query 0
    lead = offset - first * C
    ends = lambda x, a, b: jnp.pad(x, [(0, 0)] * n + [(a, b)] + [(0, 0)] * (x.ndim - n - 1))
    rows = in_blocks(ends(q, lead, 0), C, n)  # [*B, P, C, N, H]
    P = rows.shape[n]
    start = first * C

    def own(x):
        """The blocks of tokens in which the queries' blocks stand."""
        x = ends(x, max(-start, 0), max(start + P * C - S, 0))
        at = max(start, 0)
        return in_blocks(jax.lax.slice_in_dim(x, at, at + P * C, axis=n), C, n)

    keys, values, seen, spoilt = map(own, near)
    local = _local(rows * H**-0.5, keys, values, seen)
    # all queries of a block see the same pooled keys, so they run as heads of one query
    grouped = rows.reshape(*batch, P, C, K, N // K, H).swapaxes(n + 1, n + 2)
    far = blockwise(
        grouped.reshape(*batch, P, N * C, H), k, v, Causal(first - 1) & there, None, scale=None
    )
    apart = lambda x: x.reshape(*batch, P, K, C, N // K, *x.shape[n + 2 :]).swapaxes(n + 1, n + 2)
    far = tuple(apart(x).reshape(*batch, P, C, N, *x.shape[n + 2 :]) for x in far)
    out = merged((local, far))[0]
    met = spread(jnp.isnan(spoilt), n + 1)
    past = spread(in_blocks(jnp.isnan(near[3]), C, n).any(n + 1), n)  # [*B, blocks of keys, N]
    before = jnp.arange(P) + first - 1
    past = jnp.take(past, jnp.clip(before, 0, past.shape[n] - 1), axis=n)
    met = met | conjunction(past, (before >= 0)[:, None])[..., None, :]
    met = jnp.where(met, jnp.nan, 0).astype(q.dtype)
    flat = lambda x: x.reshape(*batch, P * C, *x.shape[n + 2 :])
    back = lambda x: jax.lax.slice_in_dim(flat(x), lead, lead + T, axis=n)
    return back(out), back(met)


def _local(q, k, v, seen):
    """Causal softmax within blocks: the output [*B, P, C, N, D] and log-sum-exp [*B, P, C, N]."""
    C = q.shape[-3]
    past = jnp.tril(jnp.ones((C, C), bool))
    shown = conjunction(past, seen[..., None, None, :])  # [*B, P, 1, C, C]
    return softmax_part(dots(q, k), shown, v)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooled(Mechanism):
    """Softmax over keys and values pooled in blocks of `stride` (memory-compressed, Liu et al.
    2018): by their mean, or by a learned convolution for each key head."""

    honours: ClassVar = HONOURS
    crosses: ClassVar = True
    stride: int = 3
    pool: Literal["mean", "conv"] = "mean"

    def __post_init__(self):
        check_count("stride", self.stride)
        check_choice("pool", self.pool, POOLS)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, **kernels) -> Array:
        self.check_learned(q, k, v, **kernels)
        return pooled_attention(q, k, v, mask=mask, bias=bias, stride=self.stride, **kernels)

    def reference(self, q, k, v, *, mask=FULL, bias=None, **kernels):
        self.check_learned(q, k, v, **kernels)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*HONOURS)
        refuse_rest("pooled", rest, bias, HONOURS)
        (*batch, T, _, _), S, C = q.shape, k.shape[-3], self.stride
        asks, seen = seen_tokens(padding, tuple(batch), T, S)
        k, v = (jnp.where(seen[..., None, None], wide(x), 0) for x in (k, v))
        blocks = lambda x: in_blocks(x, C, len(batch))
        each = (kernels.get("key_kernel"), kernels.get("value_kernel"))
        pooled = [pool(blocks(x), blocks(seen), w) for x, w in zip((k, v), each)]
        shown = blocks(seen).any(-1)[..., None, :] & asks[..., None]
        if causal is not None:
            place = jnp.arange(T)[:, None] + causal.offset
            j, block = jnp.arange(S)[None], jnp.arange(shown.shape[-1])[None]
            shown = conjunction(shown, block < place // C)
            own = (j // C == place // C) & (j <= place)
            own = conjunction(own, seen[..., None, :], asks[..., None])
            pooled = [jnp.concatenate([x, y], -3) for x, y in zip(pooled, (k, v))]
            shown = jnp.concatenate([shown, own], -1)
        return dense_attention(wide(q), *pooled, mask=ArrayMask(shown))

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        sizes = num_kv_heads, head_dim, value_dim
        how = dict(stride=self.stride, max_length=max_length, dtype=dtype)
        return PooledState.empty(batch, *sizes, **how)

    def step(self, state, q, k, v, **kernels):
        check_state(state, PooledState, q)
        self.check_learned(q, k, v, **kernels)
        check_one_token(q)
        blocks, tokens = state.far.k.shape[-2], state.near.k.shape[-2]
        most = self.stride if blocks > 1 else min(self.stride, tokens)
        check_kept(tokens, most, f"tokens beside {blocks} blocks")
        return state.step(q, k, v, _checked(self.stride, k, v, **kernels), self.stride)

    def prefill(self, q, k, v, *, max_length, **kernels):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), **kernels)
        kernels = _checked(self.stride, k, v, **kernels)
        return PooledState.of(k, v, kernels, stride=self.stride, max_length=max_length), out

    def weights(self, q, k, *, mask=FULL, bias=None, **kernels):
        if self.pool == "conv":
            raise NotImplementedError("Pooled: a convolution mixes channels, not tokens alone")
        return matrix_of(lambda q, k, v: self(q, k, v, mask=mask, bias=bias, **kernels), q, k)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        if self.pool == "mean":
            return {}

        def draw(key, width):
            shape = (num_kv_heads, self.stride, width, width)
            return (
                jax.random.normal(key, shape, jnp.float32) * (self.stride * max(1, width)) ** -0.5
            )

        a, b = jax.random.split(key)
        return {"key_kernel": draw(a, head_dim), "value_kernel": draw(b, value_dim)}

    def flops(self, T, S, N, K, H, D):
        if 0 in (T, S, D):
            return 0
        stride = min(self.stride, T + S)
        blocks = -(-S // stride)
        conv = 2 * blocks * stride * K * (H * H + D * D) if self.pool == "conv" else 0
        return 2 * visited_scores(FULL, T, blocks, N) * N * (H + D) + conv

    @classmethod
    def examples(cls):
        return cls(stride=4), cls(stride=3, pool="conv")
