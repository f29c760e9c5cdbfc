"""Set Transformer's induced attention (Lee et al. 2018, arXiv:1810.00825): O((T + S) points)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._arrays import check_floats
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._settings import check_count
from attn.compressed import _twice
from attn.masks import FULL, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Padding,)


@auto_inside
def set_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    inducing_points: Float[Array, "K P H"],
    key_map: Float[Array, "K D H"],
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q (h W)^T / sqrt(H)) h with h = softmax(I k^T / sqrt(H)) v [P, D], per key head.

    The two attentions of the paper's induced block ISAB, one head at a time: `inducing_points` I
    are queries (the authors scale by the width of all heads), and `key_map` W makes the keys of the
    second attention from their output h; its values are h itself, since the layer's output
    projection can map them. The inner block's residual path, norm and position-wise network are
    left out; those of the outer block are the layer's. O((T + S) P) time and memory. Honours
    `Padding`; the points see all positions, so `Causal` and the rest raise NotImplementedError.
    Raises ValueError for arrays of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    (padding,), rest = mask.take(*HONOURS)
    refuse_rest("set", rest, bias, HONOURS)
    _twice.check_rows("inducing_points", inducing_points, k)
    check_floats(key_map=key_map)
    want = [k.shape[-2], v.shape[-1], k.shape[-1]]
    if list(key_map.shape) != want:
        raise ValueError(f"key_map: expected {want}, got {list(key_map.shape)}")
    keys = lambda h, w, k: jnp.einsum("...kpd,kdh->...kph", h, key_map.astype(h.dtype))
    return _twice.attend(q, k, v, inducing_points, keys, padding)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Set(Mechanism):
    """Attention through `points` learned inducing points (Set Transformer, Lee et al. 2018)."""

    honours: ClassVar = HONOURS
    crosses: ClassVar = True
    points: int = 32

    def __post_init__(self):
        check_count("points", self.points)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, inducing_points, key_map) -> Array:
        learned = {"inducing_points": inducing_points, "key_map": key_map}
        self.check_learned(q, k, v, **learned)
        return set_attention(q, k, v, mask=mask, bias=bias, **learned)

    def reference(self, q, k, v, *, mask=FULL, bias=None, inducing_points, key_map):
        self.check_learned(q, k, v, inducing_points=inducing_points, key_map=key_map)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (padding,), rest = mask.take(*HONOURS)
        refuse_rest("set", rest, bias, HONOURS)
        keys = lambda w, k, v: jnp.einsum("...kps,...skd,kde->...pke", w, v, key_map)
        return _twice.whole(q, k, v, inducing_points, keys, padding)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # so that scores of points and of found keys have unit variance if keys and values have it
        draw = lambda key, *shape: jax.random.normal(key, (num_kv_heads, *shape), jnp.float32)
        a, b = jax.random.split(key)
        return {
            "inducing_points": draw(a, self.points, head_dim),
            "key_map": draw(b, value_dim, head_dim) * max(1, value_dim) ** -0.5,
        }

    def flops(self, T, S, N, K, H, D):
        return _twice.read_flops(T, self.points, N, H, D) + 2 * self.points * K * (
            S * (H + D) + H * D
        )

    @classmethod
    def examples(cls):
        return cls(points=3), cls(points=11)
