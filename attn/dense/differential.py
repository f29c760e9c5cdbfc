"""Differential attention (Ye et al. 2024, arXiv:2410.05258): one softmax minus another, O(T S)."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._cached import Cached
from attn._core import dense_attention, dense_weights, isolate
from attn._dropout import as_dropout, check_dropout_key, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_block, is_number
from attn._wide import wide
from attn.biases import Bias
from attn.kernels.call import Call
from attn.kernels.dispatch import keep_names, run
from attn.masks import FULL, TERMS, Mask
from attn.norms import HeadNorm

NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@auto_inside
def differential_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    lambda_q1: Float[Array, " H//2"],
    lambda_k1: Float[Array, " H//2"],
    lambda_q2: Float[Array, " H//2"],
    lambda_k2: Float[Array, " H//2"],
    lambda_init: float = 0.8,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    implementation: str | tuple[str, ...] | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """(softmax(q1 k1^T / sqrt(H/2)) - lambda softmax(q2 k2^T / sqrt(H/2))) v per head, where q1, q2
    and k1, k2 are the halves of q and k, and lambda = exp(lambda_q1 . lambda_k1) -
    exp(lambda_q2 . lambda_k2) + lambda_init is one number for all heads.

    The bias is added to both scores; the two maps drop weights independently. Key head n K / N
    serves both maps of query head n, as in the authors' `multihead_flashdiff_1.py`. Two calls of
    the softmax engine. Raises ValueError for an odd H, for vectors of another width and for a
    lambda_init that is no number in [0, 1).
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_block(block)
    _check_init(lambda_init)
    amount = _lambda(q, lambda_q1, lambda_k1, lambda_q2, lambda_k2, lambda_init)

    def attend(q, k, key):
        dropout = as_dropout(dropout_rate, key, q, k)
        call = Call(q, k, wide(v), mask, bias, dropout=dropout, block=block)
        return run(call, implementation)[0]

    first, second = map(attend, _halves(q), _halves(k), _keys(dropout_rate, dropout_key))
    # a NaN row whose output is unused must not reach lambda: 0 * NaN
    second, poison = isolate(second)
    return (first - amount * second + poison[..., None]).astype(jnp.result_type(q))


def _halves(x):
    """x1 and x2, wide: the difference of their softmaxes may be smaller than either's rounding."""
    return jnp.split(wide(x), 2, axis=-1)


def _keys(rate, key):
    if key is None or rate == 0:
        return None, None
    check_dropout_key(key)
    return jax.random.split(key)


def _check_init(lambda_init):
    if not is_number(lambda_init) or not 0 <= lambda_init < 1:
        raise ValueError(f"lambda_init: expected a number in [0, 1), got {lambda_init!r}")


def _lambda(q, lambda_q1, lambda_k1, lambda_q2, lambda_k2, lambda_init) -> Float[Array, ""]:
    H = q.shape[-1]
    if H % 2:
        raise ValueError(f"q: expected an even head width, to split it in halves, got {H}")
    vectors = lambda_q1, lambda_k1, lambda_q2, lambda_k2
    check_floats(**dict(zip(NAMES, vectors)))
    for name, x in zip(NAMES, vectors):
        if x.shape != (H // 2,):
            got = list(x.shape)
            raise ValueError(f"{name}: expected [{H // 2}], half of q's width, got {got}")
    q1, k1, q2, k2 = (wide(x) for x in vectors)
    return (jnp.exp((q1 * k1).sum()) - jnp.exp((q2 * k2).sum()) + lambda_init).astype(wide(q).dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differential(Cached):
    """One softmax minus `lambda` times another, each over half of the head width (Ye et al. 2024);
    a layer normalises each head's output."""

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    parts: ClassVar = 2
    # the gradient of lambda is one number: the sum over all outputs, which cancel
    room: ClassVar = 3.0
    lambda_init: float = 0.8
    implementation: str | tuple[str, ...] | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        _check_init(self.lambda_init)
        keep_names(self)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @classmethod
    def for_layers(cls, layers: int, **settings) -> tuple["Differential", ...]:
        """One for each layer, with the paper's lambda_init 0.8 - 0.6 exp(-0.3 (layer - 1))."""
        depth = lambda layer: 0.8 - 0.6 * math.exp(-0.3 * layer)
        return tuple(cls(lambda_init=depth(layer), **settings) for layer in range(layers))

    @property
    def head_norm(self) -> HeadNorm:
        return HeadNorm(times=1 - float(self.lambda_init))

    @property
    def linear_memory(self):
        return self.implementation != "materialized"

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        draws = 0.1 * jax.random.normal(key, (len(NAMES), head_dim // 2), jnp.float32)
        return dict(zip(NAMES, draws))

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **vectors) -> Array:
        return differential_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            lambda_init=self.lambda_init,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            implementation=self.implementation,
            block=self.block,
            **vectors,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **vectors):
        check_qkv(q, k, v, mask, bias)
        attend = lambda q, k, key: dense_attention(
            q, k, wide(v), mask=mask, bias=bias, dropout=dropout_of(self, key, q, k)
        )
        keys = _keys(rate_of(self, dropout_key), dropout_key)
        first, second = map(attend, _halves(q), _halves(k), keys)
        return first - _lambda(q, **vectors, lambda_init=self.lambda_init) * second

    def weights(self, q, k, *, mask=FULL, bias=None, **vectors):
        check_qkv(q, k, k, mask, bias)
        amount = _lambda(q, **vectors, lambda_init=self.lambda_init)
        see = lambda q, k: dense_weights(q, k, mask=mask, bias=bias)
        first, second = map(see, _halves(q), _halves(k))
        return first - amount * second

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + 2 * D)

    @classmethod
    def examples(cls):
        return (
            cls(implementation="blockwise", block=8),
            cls(implementation="materialized", lambda_init=0.2, dropout_rate=0.3),
        )
