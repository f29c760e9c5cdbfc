"""Talking-heads attention (Shazeer et al. 2020, arXiv:2003.02436): heads mixed around the softmax.

A mixed score is one product of long vectors, sum_l P[l, n] q_l . k_l = q'_n . k', where k' holds
all key heads side by side: one multi-query call of the softmax engine, so O(T) memory, at K times
the products of softmax.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._cached import Cached
from attn._core import apply_weights, biased, dense_scores, isolate, masked_softmax
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_block
from attn._wide import wide
from attn.biases import Bias
from attn.kernels.call import Call
from attn.kernels.dispatch import keep_names, run
from attn.masks import FULL, TERMS, Mask


@auto_inside
def talking_heads_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    logit_mixing: Float[Array, "N N"],
    weight_mixing: Float[Array, "N N"],
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    implementation: str | tuple[str, ...] | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """W_m v for each head m, W_m = sum_n weight_mixing[n, m] softmax(L_n + bias_n), with the logits
    L_n = sum_l logit_mixing[l, n] q_l k_l^T / sqrt(H).

    Dropout is applied to each softmax, before its weights are mixed (the authors' to W_m, which no
    sum of softmaxes can do). A NaN or Inf in any head reaches all heads of the queries that see it.
    Raises ValueError for mixings that are not [N, N].
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_block(block)
    _check(q, logit_mixing, weight_mixing)
    side_by_side = lambda x: wide(x).reshape(*x.shape[:-2], 1, x.shape[-2] * x.shape[-1])
    mixed, keys = _mix_queries(q, k, logit_mixing), side_by_side(k)
    scale, dropout = q.shape[-1] ** -0.5, as_dropout(dropout_rate, dropout_key, mixed, keys)
    values = side_by_side(v)
    call = Call(mixed, keys, values, mask, bias, scale=scale, dropout=dropout, block=block)
    out, _ = run(call, implementation)
    return _mix_outputs(out, v, weight_mixing).astype(jnp.result_type(q))


def _mix_queries(q, k, logit_mixing) -> Float[Array, "*B T N KH"]:
    """q'_n: for each key head, the queries of its group weighted by column n of `logit_mixing`."""
    # a NaN query whose output is unused must not reach the mixing: 0 * NaN
    q, poison = isolate(wide(q))
    *batch, T, N, H = q.shape
    K = k.shape[-2]
    q = q.reshape(*batch, T, K, N // K, H)
    mixing = wide(logit_mixing).astype(q.dtype).reshape(K, N // K, N)
    mixed = jnp.einsum("...tkgh,kgn->...tnkh", q, mixing).reshape(*batch, T, N, K * H)
    return mixed + poison.sum(-1)[..., None, None]


def _mix_outputs(out, v, weight_mixing) -> Float[Array, "*B T N D"]:
    """sum_n weight_mixing[n, m] (softmax_n v_k), k the key head of m."""
    *batch, T, N, _ = out.shape
    K, D = v.shape[-2:]
    out, poison = isolate(out)
    out = out.reshape(*batch, T, N, K, D)
    mixing = wide(weight_mixing).astype(out.dtype).reshape(N, K, N // K)
    mixed = jnp.einsum("...tnkd,nkg->...tkgd", out, mixing).reshape(*batch, T, N, D)
    return mixed + poison.sum(-1)[..., None, None]


def _check(q, logit_mixing, weight_mixing):
    check_floats(logit_mixing=logit_mixing, weight_mixing=weight_mixing)
    N = q.shape[-2]
    for name, x in (("logit_mixing", logit_mixing), ("weight_mixing", weight_mixing)):
        if x.shape != (N, N):
            raise ValueError(f"{name}: expected [{N}, {N}] for {N} heads, got {list(x.shape)}")


def _dense_weights(q, k, mask, bias, logit_mixing, weight_mixing, dropout=None):
    """The matrices W_m [*B, N, T, S], by the definition, and the mask."""
    mask, bias = check_qkv(q, k, k, mask, bias)
    _check(q, logit_mixing, weight_mixing)
    s, seen = dense_scores(q, k, mask, None, None, None)
    mix = lambda x, p: jnp.einsum("...lts,ln->...nts", x, wide(p).astype(x.dtype))
    w = masked_softmax(biased(mix(s, logit_mixing), bias), seen)
    w = w if dropout is None else dropout.of_scores(w)
    return mix(w, weight_mixing), seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class TalkingHeads(Cached):
    """Softmax with learned mixing of heads before and after it (Shazeer et al. 2020)."""

    heads_alike: ClassVar = False  # each reads all others
    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    implementation: str | tuple[str, ...] | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        keep_names(self)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @property
    def linear_memory(self):
        return self.implementation != "materialized"

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # variance 1 / N and no identity, as in the authors' mesh_tensorflow
        draw = jax.nn.initializers.lecun_normal()
        a, b = jax.random.split(key)
        square = (num_heads, num_heads)
        return {
            "logit_mixing": draw(a, square, jnp.float32),
            "weight_mixing": draw(b, square, jnp.float32),
        }

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **mixings) -> Array:
        return talking_heads_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            implementation=self.implementation,
            block=self.block,
            **mixings,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **mixings):
        check_qkv(q, k, v, mask, bias)
        dropout = dropout_of(self, dropout_key, q, k[..., :1, :])
        w, seen = _dense_weights(q, k, mask, bias, **mixings, dropout=dropout)
        return apply_weights(w, wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None, **mixings):
        return _dense_weights(q, k, mask, bias, **mixings)[0]

    def flops(self, T, S, N, K, H, D):
        return 2 * T * N * (S * K + N) * (H + D)

    @classmethod
    def examples(cls):
        return (
            cls(implementation="blockwise", block=8),
            cls(implementation="materialized", dropout_rate=0.3),
        )
