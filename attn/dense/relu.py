"""ReLU attention (Wortsman et al. 2023, arXiv:2309.08586): O(T S) time, O(T + S) memory.

The square is that of Hua et al. 2022 (arXiv:2202.10447), whose code divides by the length inside
the square; n^-1 h(s) with h = relu or relu^2 and s scaled by 1 / sqrt(H) is Wortsman et al.'s.
"""

import dataclasses
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
from attn._wide import wide
from attn.biases import Bias
from attn.dense import _rows
from attn.masks import FULL, TERMS, Mask


@auto_inside
def relu_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    power: int = 2,
    length: int | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """sum_j relu(q_i . k_j / sqrt(H) + bias)^power v_j / n over the keys that `mask` shows.

    n is `length`, by default S. S counts padding: give `length` to make results independent of it.
    Raises ValueError for a power other than 1 or 2 and a length below 1.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    form = _form(k, power, length)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return _rows.attend(form, q, k, v, mask=mask, bias=bias, dropout=dropout, block=block)


def _form(k, power, length):
    _check(power, length)
    return _Power(power, length or max(1, k.shape[-3]))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Power(_rows.Form):
    power: int
    n: int

    def weigh(self, tile):
        power, n = self.power, self.n
        s = dots(tile.rows * tile.rows.shape[-1] ** -0.5, tile.columns) + tile.bias
        # what overflows is made NaN only at the end: an unused row would give 0 * inf
        fine = s < float(jnp.finfo(s.dtype).max) ** (1 / power)
        w = jax.nn.relu(jnp.where(tile.seen & fine, s, 0)) ** power / n
        return jnp.where(fine | ~tile.seen, w, jnp.nan)


def _check(power, length):
    if power not in (1, 2):
        raise ValueError(f"power: expected 1 or 2, got {power!r}")
    if length is not None:
        check_count("length", length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relu(Cached):
    """relu(q . k / sqrt(H))^power / n in place of softmax (Wortsman et al. 2023; squared, Hua et
    al. 2022); n is `length`, the number of keys by default.

    Without `length`, decoding takes n = max_length, the size of its cache.
    """

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    power: int = 2
    length: int | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        _check(self.power, self.length)
        check_rate(self.dropout_rate)
        check_block(self.block)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None) -> Array:
        return relu_attention(
            q,
            k,
            v,
            power=self.power,
            length=self.length,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            block=self.block,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        check_qkv(q, k, v, mask, bias)
        n = self.length or max(1, k.shape[-3])
        # not s > 0, which a NaN is not: its row is NaN; 0 before the power: the square of -inf
        # has a gradient of -inf, which is NaN times 0
        relu = lambda s, seen: jnp.where(seen & ~(s <= 0), s, 0) ** self.power / n
        s = scores(wide(q), wide(k)) / q.shape[-1] ** 0.5
        dropout = dropout_of(self, dropout_key, q, k)
        return _rows.whole(s, q, k, v, mask=mask, bias=bias, dropout=dropout, weigh=relu)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        return _rows.draw(_form(k, self.power, self.length), q, k, mask=mask, bias=bias)

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    def of_length(self, max_length):
        return dataclasses.replace(self, length=self.length or max(1, max_length))

    @classmethod
    def examples(cls):
        return (cls(block=8, dropout_rate=0.3),)
