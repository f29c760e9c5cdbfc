"""Luna: linear unified nested attention (Ma et al. 2021, arXiv:2106.01540), O((T + S) length)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._core import apply_weights, seen_array
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._prompt import as_tokens
from attn._settings import check_count, check_room_for
from attn._tokens import matrix_of, seen_tokens
from attn._wide import float_dtype, wide
from attn.compressed import _luna_causal, _scanned, _twice
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Causal, Padding)


@auto_inside
def luna_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    packed: Float[Array, "K L H"],
    mask: Mask = FULL,
    bias=None,
    chunk: int = 64,
) -> Float[Array, "*B T N D"]:
    """softmax(q (A k)^T / sqrt(H)) (A v) with A = softmax(p k^T / sqrt(H)), [L, S] per key head.

    Pack attention A, from a learned extra sequence p (`packed`), then unpack attention from q. The
    paper projects the packed sequence A x to keys and values; A (x W) = (A x) W, so here those are
    A k and A v, by the layer's projections. (Its pack attention has projections of its own, and
    mixes heads between the two; here A uses k, and each head packs for itself.) The paper passes
    the packed sequence, through a residual path and norm, to the next layer as its p, which an
    interface of one output does not allow, so p is learned in every layer.

    Under `Causal` A cannot be a softmax over tokens, which would depend on later ones: it is the
    paper's causal form, with softplus for softmax and running means (`_luna_causal.py`), in chunks:
    `chunk` changes only the speed. O((T + S) L) time and memory, a decoding state of L (H + D)
    numbers per key head. Honours `Causal` and `Padding` joined by `&`, else NotImplementedError.
    Raises ValueError for a `packed` of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    check_count("chunk", chunk)
    (causal, padding), rest = mask.take(*HONOURS)
    refuse_rest("luna", rest, bias, HONOURS)
    _twice.check_rows("packed", packed, k)
    if causal is None:
        return _twice.attend(q, k, v, packed, _twice.averaged_keys, padding)
    sizes = k.shape[-2], packed.shape[-2], k.shape[-1], v.shape[-1]
    state = _luna_causal.empty(q.shape[:-3], *sizes, q.dtype)
    step = _luna_causal.chunk
    return _scanned.attend(step, packed, state, q, k, v, causal, padding, chunk)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Luna(Mechanism):
    """Nested attention: tokens packed to `length` learned rows, then unpacked (Ma et al. 2021)."""

    honours: ClassVar = HONOURS
    crosses: ClassVar = True
    length: int = 16
    chunk: int = 64

    def __post_init__(self):
        check_count("length", self.length)
        check_count("chunk", self.chunk)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, packed) -> Array:
        self.check_learned(q, k, v, packed=packed)
        return luna_attention(q, k, v, packed=packed, mask=mask, bias=bias, chunk=self.chunk)

    def reference(self, q, k, v, *, mask=FULL, bias=None, packed):
        self.check_learned(q, k, v, packed=packed)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (causal, padding), rest = mask.take(*HONOURS)
        refuse_rest("luna", rest, bias, HONOURS)
        if causal is None:
            keys = lambda w, k, v: jnp.einsum("...kps,...skh->...pkh", w, k)
            return _twice.whole(q, k, v, packed, keys, padding)
        T, S = q.shape[-3], k.shape[-3]
        seen, (asks, keys) = seen_array(mask, T, S), seen_tokens(padding, q.shape[:-3], T, S)
        hide = lambda x, there: jnp.where(there[..., None, None], x, 0)
        w = _luna_causal.matrix(hide(q, asks), hide(k, keys), packed, seen)
        return apply_weights(w, wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None, packed):
        return matrix_of(lambda q, k, v: self(q, k, v, mask=mask, bias=bias, packed=packed), q, k)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        shape = (num_kv_heads, self.length, head_dim)
        return {"packed": jax.random.normal(key, shape, jnp.float32)}

    def flops(self, T, S, N, K, H, D):
        return _twice.read_flops(T, self.length, N, H, D) + 2 * self.length * S * K * (2 * H + D)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        check_room_for(batch, max_length, **sizes)
        shape = num_kv_heads, self.length, head_dim, value_dim
        return _luna_causal.empty(tuple(batch), *shape, float_dtype(dtype))

    def step(self, state, q, k, v, *, packed):
        """`q`, `k` and `v` may hold any number of tokens: the state goes on after them."""
        self.check_learned(q, k, v, packed=packed)
        return _scanned.go_on(_luna_causal.chunk, packed, self, state, q, k, v)

    def prefill(self, q, k, v, *, max_length, packed):
        return as_tokens(self, q, k, v, max_length, packed=packed)

    @classmethod
    def examples(cls):
        return cls(length=6, chunk=4), cls(length=11)
