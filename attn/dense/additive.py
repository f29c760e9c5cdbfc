"""Additive attention (Bahdanau et al. 2014, arXiv:1409.0473): O(T S A) time, O(T + S) memory."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._cached import Cached
from attn._core import masked_softmax
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv
from attn._settings import check_block, check_count
from attn._wide import wide
from attn.biases import Bias
from attn.dense import _rows
from attn.masks import FULL, TERMS, Mask


@auto_inside
def additive_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    query_projection: Float[Array, "N H A"],
    key_projection: Float[Array, "K H A"],
    score_vector: Float[Array, "N A"],
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax_j(a . tanh(W q_i + U k_j)) v_j over the keys that `mask` shows, per head, with W =
    `query_projection`, U = `key_projection`, a = `score_vector` and, as in the paper, no bias
    vectors.

    A `bias` is added to the scores. Raises ValueError for arrays of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    form = _form(q, k, query_projection, key_projection, score_vector)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return _rows.attend(form, q, k, v, mask=mask, bias=bias, dropout=dropout, block=block)


def _form(q, k, query_projection, key_projection, score_vector):
    N, H, K = *q.shape[-2:], k.shape[-2]
    (A,) = _rows.last_sizes(query_projection, 1)
    arrays = {
        "query_projection": query_projection,
        "key_projection": key_projection,
        "score_vector": score_vector,
    }
    shapes = {"query_projection": (N, H, A), "key_projection": (K, H, A), "score_vector": (N, A)}
    _rows.check_given(arrays, shapes)
    return _Scores(*(x.astype(wide(q).dtype) for x in arrays.values()))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Scores(_rows.Form):
    w: Float[Array, "N H A"]
    u: Float[Array, "K H A"]
    a: Float[Array, "N A"]

    def features(self, q, k):
        w, u = self.w, self.u
        return jnp.einsum("...tnh,nha->...tna", q, w), jnp.einsum("...skh,kha->...ska", k, u)

    def weigh(self, tile):
        s = _rows.tanh_scores(tile.rows, tile.columns, self.a)
        return masked_softmax(s + tile.bias, tile.seen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Additive(Cached):
    """Softmax over a hidden layer's scores, a . tanh(W q + U k) (Bahdanau et al. 2014); `hidden`
    units, the head width by default."""

    honours: ClassVar = (*TERMS, Bias)
    crosses: ClassVar = True
    hidden: int | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        if self.hidden is not None:
            check_count("hidden", self.hidden)
        check_rate(self.dropout_rate)
        check_block(self.block)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned) -> Array:
        self.check_learned(q, k, v, **learned)
        return additive_attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            block=self.block,
            **learned,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned):
        self.check_learned(q, k, v, **learned)
        learned = {name: x.astype(wide(q).dtype) for name, x in learned.items()}
        u = jnp.einsum("...tnh,nha->...nta", wide(q), learned["query_projection"])
        x = jnp.einsum("...skh,kha->...ksa", wide(k), learned["key_projection"])
        x = jnp.repeat(x, q.shape[-2] // k.shape[-2], axis=-3)
        hidden = jnp.tanh(u[..., :, None, :] + x[..., None, :, :])
        s = jnp.einsum("...ntsa,na->...nts", hidden, learned["score_vector"])
        dropout = dropout_of(self, dropout_key, q, k)
        return _rows.whole(s, q, k, v, mask=mask, bias=bias, dropout=dropout)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        self.check_learned(q, k, k, **learned)
        mask, bias = check_qkv(q, k, k, mask, bias)
        return _rows.draw(_form(q, k, **learned), q, k, mask=mask, bias=bias)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # not the paper's a = 0 and W, U of deviation 0.001: at a = 0 neither W nor U would learn
        A = self.hidden or head_dim
        draw = lambda key, *shape: jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5
        w, u, a = jax.random.split(key, 3)
        return {
            "query_projection": draw(w, num_heads, head_dim, A),
            "key_projection": draw(u, num_kv_heads, head_dim, A),
            "score_vector": draw(a, num_heads, A, 1)[..., 0],
        }

    def flops(self, T, S, N, K, H, D):
        A = self.hidden or H
        return 2 * H * A * (T * N + S * K) + 2 * T * S * N * (A + D)

    @classmethod
    def examples(cls):
        return (cls(hidden=5, dropout_rate=0.3),)
