"""Efficient attention (Shen et al. 2018, arXiv:1812.01243): softmax of q and of k, O(T H D)."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from attn._axes import aligned
from attn._core import isolate, masked_softmax, seen_array
from attn._explicit import auto_inside
from attn._inputs import check_state
from attn._tokens import no_output
from attn._wide import log_add, wide
from attn.linearized import _attend, _dense
from attn.linearized._family import Linearized
from attn.linearized._terms import State, Terms, low
from attn.masks import FULL, Mask


def efficient_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q_i) . sum_j softmax_j(k_j) v_j^T: over the channels of q, over the positions of k.

    A key's softmax is, channel by channel, over the keys that its query sees. Under `Causal` that
    is the gated recurrence S_t = g_t S_(t-1) + (1 - g_t) v_t^T with 1 - g_t = exp(k_t - Z_t), the
    share that k_t has in Z_t = logsumexp(k_1 .. k_t). O(T) time and memory. Honours `Causal`,
    `Padding` and `Segments` joined by `&`, else NotImplementedError.
    """
    return Efficient(chunk=chunk)(q, k, v, mask=mask, bias=bias)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Running:
    """The sums, and the log-sum-exp of each channel of the keys so far."""

    sums: State
    total: Float[Array, "*B K H"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficient(Linearized):
    """Softmax over channels for queries, over positions for keys (Shen et al. 2018)."""

    crosses: ClassVar = True

    def terms(self, q, k, log_decay=None):
        # `k` is already a softmax over the positions seen with each key
        return Terms(jax.nn.softmax(q, axis=-1), k, log_decay)

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        mask, _, _ = self._checked(q, k, v, mask, bias, {})
        causal, padding, segments = mask.take(*self.honours)[0]
        gates, S = {}, k.shape[-3]
        if 0 not in k.shape:
            shown = jnp.ones(S, bool) if padding is None else padding.seen_keys(S)
            ids = None if segments is None else segments.ids[1]
            k, poison = _logits(k, shown)
            if causal is not None:
                share, gates["log_decay"] = _gate(k, _earlier(k, ids))
            else:
                share = _share(k, ids)
            k = share + poison
        terms = {"causal": causal, "padding": padding, "segments": segments}
        return _attend.attend(self, q, k, v, gates, {}, **terms)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, _, _ = self._checked(q, k, k, mask, bias, {})
        *batch, T, N, H = q.shape
        S, K = k.shape[-3:-1]
        q, seen = aligned(wide(q), seen_array(mask, T, S))
        logits = jnp.moveaxis(wide(k), -3, -1).reshape(*batch, K * H, 1, S)
        share = masked_softmax(jnp.broadcast_to(logits, (*batch, K * H, T, S)), seen)
        share = jnp.repeat(share.reshape(*batch, K, H, T, S), N // K, axis=-4)
        q = jnp.where(jnp.swapaxes(seen.any(-1), -1, -2)[..., None], q, 0)
        return jnp.einsum("...inh,...nhij->...nij", jax.nn.softmax(q, axis=-1), share)

    def loop(self, q, k, v):
        self._checked_tokens(q, k, v, {})
        k = wide(k)
        share, log_decay = _gate(k, _earlier(k, None))
        return _dense.loop(self, q, share, v, {"log_decay": log_decay}, {})

    def init_state(self, batch, *, num_kv_heads, head_dim, dtype="float32", **sizes):
        sizes |= {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": dtype}
        sums = super().init_state(batch, **sizes)
        nothing = low(sums.kv.dtype)
        return Running(sums, jnp.full((*batch, num_kv_heads, head_dim), nothing, sums.kv.dtype))

    def step(self, state, q, k, v):
        self._checked_tokens(q, k, v, {})
        check_state(state, Running, q)
        want, came = [*k.shape[:-3], *k.shape[-2:]], list(jnp.shape(state.total))
        if want != came:
            raise ValueError(f"state: expected total of {want} to go with k, got {came}")
        if q.shape[-3] == 0:
            return state, no_output(q, v)
        k, poison = _logits(k, jnp.ones(k.shape[-3], bool))
        before = log_add(_earlier(k, None), state.total[..., None, :, :])
        share, log_decay = _gate(k, before)
        gates = {"log_decay": log_decay}
        sums, out = _attend.follow(self, state.sums, wide(q), share + poison, v, gates, {})
        total = log_add(before, k)[..., -1, :, :]
        return Running(sums, total), out.astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return (cls(chunk=8),)


def _logits(k, shown: Bool[Array, "*#B S"]):
    """Keys, in float32 or wider, of weight 0 where hidden or not finite; and NaN if not finite."""
    k, shown = aligned(k, shown[..., None, None])
    k, poison = isolate(jnp.where(shown, wide(k), 0))
    poison = poison[..., None]
    return jnp.where(shown & (poison == 0), k, low(k.dtype)), jax.lax.stop_gradient(poison)


def _gate(k, before):
    """(1 - g, log g): the shares of a key and of what was before it in the log-sum-exp of both."""
    return jax.nn.sigmoid(k - before), -log_add(k - before, 0.0)


def _share(k, ids):
    """The share of each key in the softmax over its document."""
    if ids is None:
        return jax.nn.softmax(k, axis=-3)
    after = jnp.flip(_earlier(jnp.flip(k, -3), jnp.flip(ids, -1)), -3)
    return jax.nn.sigmoid(k - log_add(_earlier(k, ids), after))


def _earlier(k: Float[Array, "*B S K H"], ids) -> Float[Array, "*B S K H"]:
    """The log-sum-exp, in each channel, of the keys before each key of its document."""
    shifted = lambda x, first: jnp.concatenate(
        [jnp.full_like(x[..., :1, :, :], first), x[..., :-1, :, :]], -3
    )
    if ids is None:
        return _running(shifted(k, low(k.dtype)), jnp.zeros((k.shape[-3], 1, 1), bool))
    # each document's keys side by side; the sum restarts where one begins
    ids = jnp.broadcast_to(ids, k.shape[:-2])
    order = jnp.argsort(ids, axis=-1, stable=True)
    take = lambda x, at: jnp.take_along_axis(x, at[..., None, None], axis=-3)
    ids = take(ids[..., None, None], order)
    begins = jnp.concatenate(
        [jnp.ones_like(ids[..., :1, :, :], bool), ids[..., 1:, :, :] != ids[..., :-1, :, :]], -3
    )
    x = jnp.where(begins, low(k.dtype), shifted(take(k, order), 0))
    return take(_running(x, begins), jnp.argsort(order, axis=-1))


@jax.jit  # for calls outside of jit
def _running(
    x: Float[Array, "*B S K H"], begins: Bool[Array, "*#B S 1 1"]
) -> Float[Array, "*B S K H"]:
    """The running log-sum-exp of x, restarted where it `begins`: along runs of about sqrt(S)
    positions, all runs side by side, then from run to run. XLA compiles two short loops, not a tree
    of log2(S) sums."""
    S = x.shape[-3]
    run = math.isqrt(S - 1) + 1
    begins = jnp.broadcast_to(begins, (*x.shape[:-2], 1, 1))
    x, begins = _runs(x, run, low(x.dtype)), _runs(begins, run, False)

    def join(before, now):
        begun = before[0] | now[0]
        total = jnp.where(now[0], now[1], log_add(before[1], now[1]))
        return (begun, total), (begun, total)

    nothing = jnp.zeros_like(begins[0]), jnp.full_like(x[0], low(x.dtype))
    _, (begun, total) = lax.scan(join, nothing, (begins, x))
    nothing = jax.tree.map(lambda y: y[0], nothing)
    _, (_, ends) = lax.scan(join, nothing, (begun[-1], total[-1]))
    before = jnp.concatenate([nothing[1][None], ends[:-1]])
    total = jnp.where(begun, total, log_add(total, before[None]))
    total = jnp.swapaxes(total, 0, 1).reshape(run * total.shape[1], *total.shape[2:])
    return jnp.moveaxis(total[:S], 0, -3)


def _runs(x: Shaped[Array, "*B S K H"], run: int, fill) -> Shaped[Array, "run runs *B K H"]:
    x = jnp.moveaxis(x, -3, 0)
    rest = [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, [(0, -len(x) % run), *rest], constant_values=fill)
    return jnp.swapaxes(x.reshape(len(x) // run, run, *x.shape[1:]), 0, 1)
