"""Attention with bounded-memory control (Peng et al. 2021, arXiv:2110.02488): O((T + S) slots)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._axes import conjunction
from attn._core import apply_weights, isolate, masked_softmax, seen_array
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._prompt import as_tokens
from attn._settings import check_count, check_room_for
from attn._tokens import seen_tokens
from attn._wide import float_dtype, inverse, wide, wide_dtype
from attn.compressed import _scanned, _twice
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding)


@auto_inside
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

    f_j = exp(W^T k_j) are the weights of token j in the slots, W (`control`) learned for each key
    head: the paper's MLP control, of the key where the paper has the layer's input. Under `Causal`
    the sums run over each query's own past, in chunks, relative to a running maximum of that past:
    `chunk` changes only the speed. O((T + S) M) time and memory, a decoding state of M (H + D)
    numbers per key head. Honours `Causal` and `Padding` joined by `&`, else NotImplementedError.
    Raises ValueError for a `control` of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("chunk", chunk)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("abc", rest, bias, HONOURS)
    _check_control(control, k)
    if causal is None:
        rows = jnp.swapaxes(control, -1, -2)
        return _twice.attend(q, k, v, rows, _twice.averaged_keys, padding, scale=1.0)
    sizes = k.shape[-2], control.shape[-1], k.shape[-1], v.shape[-1]
    state = _empty(q.shape[:-3], *sizes, q.dtype)
    return _scanned.attend(_chunk, control, state, q, k, v, causal, padding, chunk)


def _check_control(control, k):
    check_floats(control=control)
    K, H = k.shape[-2:]
    if control.ndim != 3 or control.shape[:2] != (K, H) or control.shape[2] == 0:
        raise ValueError(f"control: expected {[K, H, 'M']}, got {list(control.shape)}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The slots after the past tokens: sums of f, f k and f v, all times exp(-top)."""

    weight: Float[Array, "*B K M"]
    k: Float[Array, "*B K M H"]
    v: Float[Array, "*B K M D"]
    top: Float[Array, "*B K M"]  # the largest log f so far
    poison: Float[Array, "*B K"]  # NaN if a key or value was not finite, else 0


def _empty(batch, K, M, H, D, dtype) -> State:
    dtype = wide_dtype(dtype)
    zeros = lambda *tail: jnp.zeros((*batch, K, *tail), dtype)
    # not -inf: -inf - -inf would be nan
    low = jnp.full((*batch, K, M), jnp.finfo(dtype).min / 4, dtype)
    return State(zeros(M), zeros(M, H), zeros(M, D), low, zeros())


def _chunk(state, q, k, v, seen, control):
    """The `_scanned.Chunk`: C tokens after `state`; C x C x M weights per key head."""
    C = k.shape[-2]
    a, over = isolate(k @ control.astype(k.dtype))  # [*B, K, C, M]
    shown = jnp.where(seen[..., None, :, None], a, -jnp.inf)
    top = lax.cummax(lax.stop_gradient(shown), axis=a.ndim - 2)
    top = jnp.maximum(top, state.top[..., None, :])
    past = conjunction(jnp.tril(jnp.ones((C, C), bool)), seen[..., None, None, :])  # [*B, 1, C, C]
    # f of token i in row t, relative to the largest of t's own past, not of anything later
    apart = a[..., None, :, :] - top[..., :, None, :]
    f = jnp.where(past[..., None], jnp.exp(jnp.where(past[..., None], apart, 0)), 0)
    old = jnp.exp(state.top[..., None, :] - top)
    weight = old * state.weight[..., None, :] + f.sum(-2)
    last, f_last, share = old[..., -1, :, None], f[..., -1, :, :], inverse(weight)
    f, old_rows = f * share[..., None, :], (old * share)[..., None, :, :]
    # a row whose sums overflow is NaN, at the end: 0 * NaN would reach the gradients of its past
    qk = jnp.einsum("...gth,...ih->...gti", q, k) + over[..., None, None, :]
    qk, lost = isolate(jnp.where(past[..., None, :, :], qk, 0))
    (old_k, k_lost), (old_v, v_lost) = map(isolate, (state.k, state.v))
    read = jnp.einsum("...gth,...mh->...gtm", q, old_k) + (k_lost + v_lost)[..., None, None, :]
    read, read_lost = isolate(read)
    s = jnp.einsum("...gti,...tim->...gtm", qk, f) + old_rows * read
    p, s_lost = _scanned.over_slots(s)
    # also where f is 0: the gradient of a weight is as large as the value that it meets
    w = jnp.where(past[..., None, :, :], jnp.einsum("...gtm,...tim->...gti", p, f), 0)
    out = jnp.einsum("...gti,...id->...gtd", w, v) + (lost + read_lost + s_lost)[..., None]
    out = out + jnp.einsum("...gtm,...md->...gtd", p * old_rows, old_v)
    write = lambda old, x: (
        last * old + jnp.einsum("...im,...ih->...mh", f_last, x) + over.sum(-1)[..., None, None]
    )
    after = State(
        weight[..., -1, :], write(state.k, k), write(state.v, v), top[..., -1, :], state.poison
    )
    return after, out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ABC(Mechanism):
    """Attention to `slots` that tokens are written to by a learned control (Peng et al. 2021)."""

    honours: ClassVar = HONOURS
    crosses: ClassVar = True
    slots: int = 32
    chunk: int = 16

    def __post_init__(self):
        check_count("slots", self.slots)
        check_count("chunk", self.chunk)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, control) -> Array:
        self.check_learned(q, k, v, control=control)
        return abc_attention(q, k, v, mask=mask, bias=bias, control=control, chunk=self.chunk)

    def reference(self, q, k, v, *, mask=FULL, bias=None, control):
        mask, bias = check_qkv(q, k, v, mask, bias)
        w = self.weights(q, k, mask=mask, bias=bias, control=control)
        return apply_weights(w, wide(v), seen_array(mask, q.shape[-3], k.shape[-3]))

    def weights(self, q, k, *, mask=FULL, bias=None, control):
        """The effective matrix, O(T S slots): for plots and tests."""
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
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        check_room_for(batch, max_length, **sizes)
        shape = num_kv_heads, self.slots, head_dim, value_dim
        return _empty(tuple(batch), *shape, float_dtype(dtype))

    def step(self, state, q, k, v, *, control):
        """`q`, `k` and `v` may hold any number of tokens: the state goes on after them."""
        self.check_learned(q, k, v, control=control)
        return _scanned.go_on(_chunk, control, self, state, q, k, v)

    def prefill(self, q, k, v, *, max_length, control):
        return as_tokens(self, q, k, v, max_length, control=control)

    @classmethod
    def examples(cls):
        return cls(slots=5, chunk=4), cls(slots=3)
