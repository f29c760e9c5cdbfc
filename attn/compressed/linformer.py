"""Linformer (Wang et al. 2020, arXiv:2006.04768): keys and values projected to R rows, O(T R)."""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._arrays import check_floats
from attn._chunks import by_chunks, chunk_size
from attn._core import attend_materialized, dense_attention, masked_softmax, scores
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._settings import check_choice, check_count
from attn._tokens import clean, no_output, seen_tokens, to_heads
from attn._wide import wide
from attn.masks import FULL, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Padding,)
SHARING = ("none", "headwise", "key_value", "layer")
ONE_ARRAY = ("key_value", "layer")  # for keys and values both


@auto_inside
def linformer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    key_projection: Float[Array, "#K R L"],
    value_projection: Float[Array, "#K R L"] | None = None,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q (E k)^T / sqrt(H)) (F v) with E, F [R, S] the first S <= L columns of the
    projections, per key head.

    A projection with a first axis of 1 is shared by all heads; without a `value_projection` F = E.
    Padded keys are removed before projecting. O((T + S) R) time and memory. Honours `Padding`; a
    projection mixes all positions, so `Causal` and the rest raise NotImplementedError. Raises
    ValueError for projections of the wrong shape or S > L.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    (padding,), rest = mask.take(*HONOURS)
    refuse_rest("linformer", rest, bias, HONOURS)
    both = _projections(*k.shape[-3:-1], key_projection, value_projection)
    return _attend(q, k, v, padding, *both)


@jax.jit  # for calls outside of jit
def _attend(q, k, v, padding, e, f) -> Float[Array, "*B T N D"]:
    (*batch, T, N, _), S = q.shape, k.shape[-3]
    asks, seen = seen_tokens(padding, tuple(batch), T, S)
    (rows, q_poison), (k, k_poison), (v, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    keys, f = _keys(k, e, f)
    values = jnp.einsum("krs,...skd->...rkd", f, v)
    if T == 0:
        return no_output(q, v)
    live = asks & seen.any(-1, keepdims=True)
    attend = lambda _, rows: attend_materialized(*_scores(*rows, keys), values)
    size = chunk_size(math.prod(batch) * N * f.shape[1])
    out = by_chunks(attend, (rows, live[..., None, None]), T, size)
    # what is not finite reaches its row and head, through every projected key
    met = to_heads((k_poison + v_poison).sum(-2), N)[..., None, :] + q_poison
    met = jax.lax.stop_gradient(jnp.where(live[..., None], met, 0))
    return (out + met[..., None]).astype(jnp.result_type(q))


def _projections(S, K, key_projection, value_projection=None):
    """E and F, checked and cut to S columns, [K, R, S]."""
    value_projection = key_projection if value_projection is None else value_projection
    check_floats(key_projection=key_projection, value_projection=value_projection)
    for name, x in (("key_projection", key_projection), ("value_projection", value_projection)):
        if x.ndim != 3 or x.shape[0] not in (1, K) or x.shape[2] < S or x.shape[1] == 0:
            raise ValueError(
                f"{name}: expected [{K} or 1, R, at least {S}] for {K} key heads and {S} keys, got "
                f"{list(x.shape)}; build the layer with a larger max_length for longer inputs"
            )
    if key_projection.shape[1] != value_projection.shape[1]:
        raise ValueError(
            f"value_projection: expected {key_projection.shape[1]} rows as key_projection, "
            f"got {value_projection.shape[1]}"
        )
    both = key_projection, value_projection
    return tuple(jnp.broadcast_to(x[..., :S], (K, x.shape[1], S)) for x in both)


def _keys(k, e, f):
    """The R projected keys [*B, R, K, H] of a k that is 0 where hidden, and F in its dtype, of the
    E and F that `_projections` gives."""
    e, f = (x.astype(k.dtype) for x in (e, f))
    return jnp.einsum("krs,...skh->...rkh", e, k), f


def _scores(q, live, keys) -> tuple[Float[Array, "*B N T R"], Bool[Array, "*B 1 T 1"]]:
    """The scores against the projected keys, and the live queries, given as [*B, T, 1, 1]."""
    return scores(q * q.shape[-1] ** -0.5, keys), jnp.moveaxis(live, -3, -2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linformer(Mechanism):
    """Softmax over keys and values projected to `features` rows (Wang et al. 2020), per key head.

    `sharing` is the paper's: "headwise" has one E and one F for all heads of a layer, "key_value"
    one array for all heads, keys and values, "layer" one for all layers of an encoder too.
    """

    honours: ClassVar = HONOURS
    crosses: ClassVar = True
    features: int = 64
    sharing: Literal["none", "headwise", "key_value", "layer"] = "none"

    def __post_init__(self):
        check_count("features", self.features)
        check_choice("sharing", self.sharing, SHARING)

    @property
    def shared_by_layers(self):
        return ("key_projection",) if self.sharing == "layer" else ()

    def __call__(self, q, k, v, *, mask=FULL, bias=None, **projections) -> Array:
        self.check_learned(q, k, v, **projections)
        return linformer_attention(q, k, v, mask=mask, bias=bias, **projections)

    def reference(self, q, k, v, *, mask=FULL, bias=None, **projections):
        self.check_learned(q, k, v, **projections)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (padding,), rest = mask.take(*HONOURS)
        refuse_rest("linformer", rest, bias, HONOURS)
        asks, seen = seen_tokens(padding, q.shape[:-3], q.shape[-3], k.shape[-3])
        live = asks & seen.any(-1, keepdims=True)
        e, f = _projections(*k.shape[-3:-1], **projections)
        k, v = (jnp.where(seen[..., None, None], wide(x), 0) for x in (k, v))
        k, v = jnp.einsum("krs,...skh->...rkh", e, k), jnp.einsum("krs,...skd->...rkd", f, v)
        return dense_attention(wide(q), k, v, mask=Padding(queries=live))

    def weights(self, q, k, *, mask=FULL, bias=None, **projections):
        self.check_learned(q, k, k, **projections)
        mask, bias = check_qkv(q, k, k, mask, bias)
        (padding,), rest = mask.take(*HONOURS)
        refuse_rest("linformer", rest, bias, HONOURS)
        asks, seen = seen_tokens(padding, q.shape[:-3], q.shape[-3], k.shape[-3])
        both = _projections(*k.shape[-3:-1], **projections)
        keys, f = _keys(jnp.where(seen[..., None, None], wide(k), 0), *both)
        live = asks & seen.any(-1, keepdims=True)
        w = masked_softmax(*_scores(wide(q), live[..., None, None], keys))
        *batch, N, T, R = w.shape
        w = w.reshape(*batch, f.shape[0], N // f.shape[0], T, R)
        full = jnp.einsum("...kgtr,krs->...kgts", w, f).reshape(*batch, N, T, f.shape[-1])
        return jnp.where(seen[..., None, None, :], full, 0)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # variance 1 / R, as the Johnson-Lindenstrauss argument of the paper has it
        heads = num_kv_heads if self.sharing == "none" else 1
        shape = (heads, self.features, max_length)
        draw = lambda key: jax.random.normal(key, shape, jnp.float32) * self.features**-0.5
        a, b = jax.random.split(key)
        if self.sharing in ONE_ARRAY:
            return {"key_projection": draw(a)}
        return {"key_projection": draw(a), "value_projection": draw(b)}

    def flops(self, T, S, N, K, H, D):
        return 2 * self.features * (H + D) * (S * K + T * N)

    @classmethod
    def examples(cls):
        shared = cls(features=3, sharing="headwise"), cls(features=5, sharing="key_value")
        return cls(features=3), cls(features=16), *shared
