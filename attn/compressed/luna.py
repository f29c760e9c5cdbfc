"""Luna: linear unified nested attention (Ma et al. 2021, arXiv:2106.01540), O((T + S) length)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._core import check_count, check_qkv
from attn._tokens import matrix_of
from attn.compressed import _twice
from attn.masks import FULL, Mask
from attn.mechanism import Mechanism


def luna_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    packed: Float[Array, "K L H"],
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q (A k)^T / sqrt(H)) (A v) with A = softmax(p k^T / sqrt(H)), [L, S] a key head.

    Pack attention A, from a learned extra sequence p (`packed`), then unpack attention from q. The
    paper projects the packed sequence A x to keys and values; A (x W) = (A x) W, so here those are
    A k and A v, by the layer's projections. The packed sequence is not handed on: the paper gives
    it, through a residual path and norm, to the next layer as its p, which an interface of one
    output cannot, so p is learned in every layer. Honours `Padding`; A sees all positions, so
    `Causal` and the rest raise NotImplementedError (the paper's causal form, with elu or softplus
    for softmax in A, is not here). Raises ValueError for a `packed` of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    _twice.check_rows("packed", packed, k)
    return _twice.attend("luna", q, k, v, packed, _twice.averaged_keys, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Luna(Mechanism):
    """Nested attention: packed to `length` learned rows and unpacked again (Ma et al. 2021)."""

    honours: ClassVar = _twice.HONOURS
    length: int = 16

    def __post_init__(self):
        check_count("length", self.length)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, packed):
        self.check_learned(q, k, v, packed=packed)
        return luna_attention(q, k, v, packed=packed, mask=mask, bias=bias)

    def reference(self, q, k, v, *, mask=FULL, bias=None, packed):
        self.check_learned(q, k, v, packed=packed)
        keys = lambda w, k, v: jnp.einsum("...kps,...skh->...pkh", w, k)
        return _twice.whole(q, k, v, packed, keys, mask=mask)

    def weights(self, q, k, *, mask=FULL, bias=None, packed):
        return matrix_of(lambda v: self(q, k, v, mask=mask, bias=bias, packed=packed), k)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        shape = (num_kv_heads, self.length, head_dim)
        return {"packed": jax.random.normal(key, shape, jnp.float32)}

    def flops(self, T, S, N, K, H, D):
        return _twice.read_flops(T, self.length, N, H, D) + 2 * self.length * S * K * (2 * H + D)

    @classmethod
    def examples(cls):
        return cls(length=6), cls(length=11)
