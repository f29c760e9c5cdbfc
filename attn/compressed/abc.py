"""Attention with bounded-memory control (Peng et al. 2021, arXiv:2110.02488): O((T + S) slots)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn._axes import conjunction
from attn._core import (
    apply_weights,
    check_count,
    check_qkv,
    isolate,
    masked_softmax,
    refuse_rest,
    seen_array,
    wide,
)
from attn._tokens import seen_tokens, to_heads
from attn.compressed import _twice
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding)


def abc_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    control: Float[Array, "K H M"],
    mask: Mask = FULL,
    bias=None,
    chunk: int = 16,
) -> Float[Array, "*B T N D"]:
    """softmax(q k'^T / sqrt(H)) v' over M slots, k'_m = sum_j f_jm k_j / sum_j f_jm and v' alike.

    f_j = exp(W^T k_j) says how token j is written to the slots, W (`control`) learned for each key
    head: the paper's MLP control, from the key where the paper has the layer's input. Under
    `Causal` the sums run over each query's own past, in chunks, held against a running maximum of
    that past: `chunk` trades speed for nothing else. O((T + S) M) time and memory, a decoding state
    of M (H + D) numbers a key head. Honours `Causal` and `Padding` joined by `&`, else
    NotImplementedError. Raises ValueError for a `control` of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("chunk", chunk)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("abc", rest, bias, HONOURS)
    _check_control(control, k)
    if causal is None:
        rows = jnp.swapaxes(control, -1, -2)
        rest = FULL if padding is None else padding
        keys = _twice.averaged_keys
        return _twice.attend("abc", q, k, v, rows, keys, mask=rest, bias=None, scale=1.0)
    (*batch, T, N, H), (S, K, D) = q.shape, v.shape[-3:]
    if 0 in (*batch, T, S):
        return jnp.zeros((*batch, T, N, D), q.dtype)
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    # query t reads after the key at t + offset: one of the two starts so much later
    offset = max(min(causal.offset, S), -T)
    late_q, late_k = max(offset, 0), max(-offset, 0)
    L, n = T + late_q, len(batch)
    shift = lambda x, by: jnp.pad(
        x, [(0, 0)] * n + [(by, max(L - by - x.shape[n], 0))] + [(0, 0)] * (x.ndim - n - 1)
    )
    cut = lambda x, by: lax.slice_in_dim(shift(x, by), 0, L, axis=n)
    state = _empty(tuple(batch), K, control.shape[-1], H, D, wide(q).dtype)
    hide = lambda x, there: jnp.where(there[..., None, None], wide(x), 0)
    tokens = cut(hide(q, asks), late_q), cut(hide(k, seen), late_k), cut(hide(v, seen), late_k)
    out = _follow(state, *tokens, cut(seen, late_k), control, chunk)[1]
    out = lax.slice_in_dim(out, late_q, None, axis=n)
    return jnp.where(asks[..., None, None], out, 0).astype(q.dtype)


def _check_control(control, k):
    K, H = k.shape[-2:]
    if control.ndim != 3 or control.shape[:2] != (K, H) or control.shape[2] == 0:
        raise ValueError(f"control: expected {[K, H, 'M']}, got {list(control.shape)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What the past wrote to the slots: sums of f, f k and f v, all times exp(-top)."""

    weight: Float[Array, "*B K M"]
    k: Float[Array, "*B K M H"]
    v: Float[Array, "*B K M D"]
    top: Float[Array, "*B K M"]  # the largest log f so far
    poison: Float[Array, "*B K"]  # NaN if a key or value was not finite, else 0


def _empty(batch, K, M, H, D, dtype) -> State:
    zeros = lambda *tail: jnp.zeros((*batch, K, *tail), dtype)
    # not -inf: -inf - -inf would be nan
    low = jnp.full((*batch, K, M), jnp.finfo(dtype).min / 4, dtype)
    return State(zeros(M), zeros(M, H), zeros(M, D), low, zeros())


def _follow(state, q, k, v, seen, control, chunk) -> tuple[State, Float[Array, "*B T N D"]]:
    """T more tokens after `state`, whatever is hidden set to 0: the state and the outputs."""
    (*batch, T, N, H), K = q.shape, k.shape[-2]
    n, dtype = len(batch), wide(q).dtype
    (q, q_poison), (k, k_poison), (v, v_poison) = map(isolate, (q, k, v))
    lost = lax.cummax(jnp.isnan(k_poison + v_poison).astype(jnp.int8), axis=n) > 0  # [*B, T, K]
    poison = jnp.where(lost, jnp.nan, 0).astype(dtype) + state.poison[..., None, :]
    met = to_heads(poison, N) + q_poison
    chunk = min(chunk, T)
    # [chunks, *B, heads, chunk, ...]: what is filled up at the end is hidden
    fill = lambda x: jnp.pad(x, [(0, 0)] * n + [(0, -T % chunk)] + [(0, 0)] * (x.ndim - n - 1))
    cut = lambda x: jnp.moveaxis(fill(x).reshape(*batch, -1, chunk, *x.shape[n + 1 :]), n, 0)
    queries = cut((q * H**-0.5).reshape(*batch, T, K, N // K, H))
    queries = jnp.moveaxis(queries, n + 1, -2)  # [chunks, *B, K, G, C, H]
    keys, values = (jnp.swapaxes(cut(x), -3, -2) for x in (k, v))
    # under shard_map what is carried must vary over the mesh axes that the tokens vary over
    zero = jnp.zeros_like(keys[:1, ..., :1, :1, :1]).sum()
    state = jax.tree.map(lambda x: x + zero, state)
    step = jax.checkpoint(lambda s, x: _chunk(s, *x, control.astype(dtype)), prevent_cse=False)
    after, out = lax.scan(step, state, (queries, keys, values, cut(seen)))
    out = jnp.moveaxis(jnp.moveaxis(out, -2, n + 1), 0, n)  # [*B, chunks, C, K, G, D]
    out = out.reshape(*batch, -1, N, v.shape[-1])[(slice(None),) * n + (slice(0, T),)]
    after = dataclasses.replace(after, poison=poison[(slice(None),) * n + (-1,)])
    return after, out + lax.stop_gradient(met)[..., None]


def _chunk(state, q, k, v, seen, control):
    """C tokens after `state`, q [*B, K, G, C, H]; C x C x M weights a key head."""
    C = k.shape[-2]
    a = k @ control  # [*B, K, C, M]
    low = jnp.finfo(a.dtype).min / 4
    shown = jnp.where(seen[..., None, :, None], a, low)
    top = lax.cummax(lax.stop_gradient(shown), axis=a.ndim - 2)
    top = jnp.maximum(top, state.top[..., None, :])
    past = conjunction(jnp.tril(jnp.ones((C, C), bool)), seen[..., None, None, :])  # [*B, 1, C, C]
    # f of token i as row t holds it: against the largest of t's own past, and nothing later
    apart = a[..., None, :, :] - top[..., :, None, :]
    f = jnp.where(past[..., None], jnp.exp(jnp.where(past[..., None], apart, 0)), 0)
    old = jnp.exp(state.top[..., None, :] - top)
    weight = old * state.weight[..., None, :] + f.sum(-2)
    share = jnp.where(weight > 0, 1 / jnp.where(weight > 0, weight, 1), 0)[..., None, :, :]
    old_rows = old[..., None, :, :]
    qk = jnp.where(past[..., None, :, :], jnp.einsum("...gth,...ih->...gti", q, k), 0)
    s = jnp.einsum("...gti,...tim->...gtm", qk, f)
    s = s + old_rows * jnp.einsum("...gth,...mh->...gtm", q, state.k)
    p = jax.nn.softmax(s * share, axis=-1) * share
    w = jnp.einsum("...gtm,...tim->...gti", p, f)
    out = jnp.einsum("...gti,...id->...gtd", w, v)
    out = out + jnp.einsum("...gtm,...md->...gtd", p * old_rows, state.v)
    last, f = old[..., -1, :, None], f[..., -1, :, :]
    write = lambda old, x: last * old + jnp.einsum("...im,...ih->...mh", f, x)
    after = State(
        weight[..., -1, :], write(state.k, k), write(state.v, v), top[..., -1, :], state.poison
    )
    return after, out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ABC(Mechanism):
    """A memory of `slots` that tokens are written to by a learned control (Peng et al. 2021)."""

    honours: ClassVar = HONOURS
    slots: int = 32
    chunk: int = 16

    def __post_init__(self):
        check_count("slots", self.slots)
        check_count("chunk", self.chunk)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, control):
        self.check_learned(q, k, v, control=control)
        return abc_attention(q, k, v, mask=mask, bias=bias, control=control, chunk=self.chunk)

    def reference(self, q, k, v, *, mask=FULL, bias=None, control):
        mask, bias = check_qkv(q, k, v, mask, bias)
        w = self.weights(q, k, mask=mask, bias=bias, control=control)
        return apply_weights(w, wide(v), seen_array(mask, q.shape[-3], k.shape[-3]))

    def weights(self, q, k, *, mask=FULL, bias=None, control):
        """O(T S slots): to look at and to test by."""
        self.check_learned(q, k, k, control=control)
        mask, bias = check_qkv(q, k, k, mask, bias)
        (_, padding), rest = mask.take(*HONOURS)
        refuse_rest("abc", rest, bias, HONOURS)
        (*batch, T, N, H), (S, K) = q.shape, k.shape[-3:-1]
        asks, keys = seen_tokens(padding, tuple(batch), T, S)
        hide = lambda x, there: jnp.where(there[..., None, None], wide(x), 0)
        q, k = hide(q, asks), hide(k, keys)
        seen = jnp.broadcast_to(seen_array(mask, T, S), (*batch, 1, T, S))
        a = jnp.einsum("...skh,khm->...kms", k, control.astype(k.dtype))[..., None, :]
        f = masked_softmax(jnp.broadcast_to(a, (*a.shape[:-2], T, S)), seen[..., None, :, :])
        slots = jnp.einsum("...kmts,...skh->...tkmh", f, k)
        grouped = q.reshape(*batch, T, K, N // K, H) * H**-0.5
        p = jax.nn.softmax(jnp.einsum("...tkgh,...tkmh->...kgtm", grouped, slots), axis=-1)
        return jnp.einsum("...kgtm,...kmts->...kgts", p, f).reshape(*batch, N, T, S)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        shape = (num_kv_heads, head_dim, self.slots)
        return {"control": jax.random.normal(key, shape, jnp.float32) * head_dim**-0.5}

    def flops(self, T, S, N, K, H, D):
        return _twice.read_flops(T, self.slots, N, H, D) + 2 * self.slots * S * K * (2 * H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        dtype = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
        return _empty(tuple(batch), num_kv_heads, self.slots, head_dim, value_dim, dtype)

    def step(self, state, q, k, v, *, control):
        """`q`, `k` and `v` may hold any number of tokens: the state goes on after them."""
        self.check_learned(q, k, v, control=control)
        want = (*q.shape[:-3], k.shape[-2], self.slots, k.shape[-1])
        if q.shape[-3] != k.shape[-3]:
            raise ValueError(f"k: expected as many tokens as q, {q.shape[-3]}, got {k.shape[-3]}")
        if not isinstance(state, State) or state.k.shape != want:
            raise ValueError(f"state: expected that of `init_state` with k of {list(want)}")
        if 0 in (*q.shape[:-2],):
            return state, jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        seen = jnp.ones(q.shape[:-2], bool)
        state, out = _follow(state, *map(wide, (q, k, v)), seen, control, self.chunk)
        return state, out.astype(q.dtype)

    def prefill(self, q, k, v, *, max_length, control):
        check_qkv(q, k, v, Causal())
        check_count("max_length", max_length, least=q.shape[-3])
        (*batch, _, N, H), K = q.shape, k.shape[-2]
        sizes = {"num_heads": N, "num_kv_heads": K, "head_dim": H, "value_dim": v.shape[-1]}
        state = self.init_state(tuple(batch), **sizes, max_length=max_length, dtype=q.dtype)
        return self.step(state, q, k, v, control=control)

    @classmethod
    def examples(cls):
        return cls(slots=5, chunk=4), cls(slots=3)
