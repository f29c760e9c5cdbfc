"""Sigmoid attention (Ramapuram et al. 2024, arXiv:2409.04431): O(T S) time, O(T + S) memory."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._cached import Cached
from attn._core import dots, scores
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_block, check_count
from attn._wide import log_add, wide
from attn.biases import Bias
from attn.dense import _rows
from attn.masks import FULL, TERMS, Mask


@auto_inside
def sigmoid_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    length: int | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """sum_j sigmoid(q_i . k_j / sqrt(H) + bias - log n) v_j over the keys that `mask` shows.

    n is `length`, by default S, so that weights sum to about 1 at initialisation, as softmax's do.
    S counts padding: give `length` to make results independent of it. Raises ValueError for a
    length below 1.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    form = _form(k, length)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return _rows.attend(form, q, k, v, mask=mask, bias=bias, dropout=dropout, block=block)


def _form(k, length):
    if length is not None:
        check_count("length", length)
    return _Shifted(math.log(length or max(1, k.shape[-3])))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Shifted(_rows.Form):
    shift: float

    def weigh(self, tile):
        s = dots(tile.rows * tile.rows.shape[-1] ** -0.5, tile.columns) + tile.bias
        return _sigmoid(s, tile.seen, self.shift)


def _sigmoid(s, seen, shift):
    return jnp.where(seen, jax.nn.sigmoid(jnp.where(seen, s, 0) - shift), 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sigmoid(Cached):
    """sigmoid(q . k / sqrt(H) - log n) in place of softmax, each key on its own (Ramapuram et al.
    2024); n is `length`, the number of keys by default.

    Without `length`, decoding takes n = max_length, the size of its cache.
    """

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    length: int | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        if self.length is not None:
            check_count("length", self.length)
        check_rate(self.dropout_rate)
        check_block(self.block)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None) -> Array:
        return sigmoid_attention(
            q,
            k,
            v,
            length=self.length,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            block=self.block,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        check_qkv(q, k, v, mask, bias)
        log_n = math.log(self.length or max(1, k.shape[-3]))
        # 1 / (1 + n exp(-s)), whose gradient at -inf would be inf / inf
        sigmoid = lambda s, seen: jnp.where(seen, jnp.exp(-log_add(log_n - s, 0.0)), 0)
        s = scores(wide(q), wide(k)) / q.shape[-1] ** 0.5
        dropout = dropout_of(self, dropout_key, q, k)
        return _rows.whole(s, q, k, v, mask=mask, bias=bias, dropout=dropout, weigh=sigmoid)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        return _rows.draw(_form(k, self.length), q, k, mask=mask, bias=bias)

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def of_length(self, max_length):
        return dataclasses.replace(self, length=self.length or max(1, max_length))

    @classmethod
    def examples(cls):
        return (cls(dropout_rate=0.3),)
