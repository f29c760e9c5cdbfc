"""Top-k attention (Gupta et al. 2021, arXiv:2106.06899): the k largest scores of each query."""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._cached import Cached
from attn._chunks import by_chunks, chunk_size
from attn._core import (
    attend_materialized,
    dense_scores,
    dots,
    isolate,
    isolated_softmax,
    masked_softmax,
    mix,
)
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_count
from attn._tokens import no_output, to_heads
from attn._wide import wide
from attn.biases import Bias
from attn.masks import FULL, TERMS, Mask
from attn.sparse._select import largest, narrow


@auto_inside
def topk_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    keys: int = 64,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q k^T / sqrt(H) + bias) v over the `keys` largest scores that each query sees.

    Gupta et al. 2021 (arXiv:2106.06899), who take the queries in chunks; the explicit sparse
    transformer (Zhao et al. 2019, arXiv:1912.11637) is the same. Exactly `keys` keys, ties to the
    earlier; if fewer are visible, all of these. Scores are ranked in float32. The other keys get no
    gradient. A NaN or Inf that a query sees makes its output NaN, wherever it would rank. O(T S)
    time, O(T + S) memory. Raises ValueError for keys below 1.
    """
    check_count("keys", keys)
    mask, bias = check_qkv(q, k, v, mask, bias)
    if 0 in (*q.shape[:-2], k.shape[-3]):
        return no_output(q, v)
    return _attend(keys, q, k, v, mask, bias)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
def _attend(keys, q, k, v, mask, bias) -> Float[Array, "*B T N D"]:
    *batch, T, N, _ = q.shape
    S = k.shape[-3]
    (rows, q_poison), (columns, k_poison), (values, v_poison) = map(isolate, map(wide, (q, k, v)))
    poison = jnp.swapaxes(to_heads(k_poison + v_poison, N), -1, -2)[..., None, :]

    def attend(i, rows):
        q, q_poison = rows
        i, j = i[:, None], jnp.arange(S)[None]
        _, seen = aligned(poison, mask.at(i, j)[..., None, :, :])
        add = 0 if bias is None else aligned(poison, bias.at(i, j))[1]
        w, over = _weights(q, columns, seen, add, keys)
        asked = jnp.swapaxes(q_poison[..., 0], -1, -2)[..., None]
        lost = jnp.where(seen, asked + poison, 0).sum(-1, keepdims=True) + over
        return mix(w, values) + jnp.swapaxes(lost, -3, -2)

    size = chunk_size(math.prod(batch) * N * S)
    return by_chunks(attend, (rows, q_poison[..., None]), T, size).astype(jnp.result_type(q))


def _weights(q, k, seen, bias, keys) -> tuple[Float[Array, "*B N t S"], Float[Array, "*B N t 1"]]:
    """The weights of finite q and k, and the poison of rows whose scores overflow."""
    scores = lambda q, k: dots(q * q.shape[-1] ** -0.5, k)
    add = lambda s: s + jnp.asarray(bias).astype(s.dtype)
    kept = largest(jax.lax.stop_gradient(add(scores(*narrow(q, k)))), seen, keys)
    return isolated_softmax(add(scores(q, k)), kept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(Cached):
    """Softmax over the `keys` largest scores of each query (Gupta et al. 2021)."""

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    keys: int = 64

    def __post_init__(self):
        check_count("keys", self.keys)

    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        return topk_attention(q, k, v, keys=self.keys, mask=mask, bias=bias)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        _, poison = isolate(wide(v))  # a cache knows not whether it was of the key or of the value
        s, kept = self._kept(q, wide(k) + poison[..., None], mask, bias)
        return attend_materialized(s, kept, v)

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, k, mask, bias)
        return masked_softmax(*self._kept(q, k, mask, bias))

    def _kept(self, q, k, mask, bias):
        """The scores [*B, N, T, S], and which of them are kept."""
        ranked, seen = dense_scores(*narrow(q, k), mask, bias, None, None)
        kept = largest(ranked.astype(jnp.float32), seen, self.keys)
        return dense_scores(q, k, mask, bias, None, None)[0], kept

    def flops(self, T, S, N, K, H, D):
        # scores twice, unless all keys are kept: ranked in float32, and weighed
        return 2 * T * S * N * (H + D + (H if self.keys < S else 0))

    @classmethod
    def examples(cls):
        return cls(keys=4), cls(keys=64)
