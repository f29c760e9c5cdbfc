"""Synthesizer (Tay et al. 2020, arXiv:2005.00743): weights without keys. O(T S) time."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn import _cache
from attn._axes import aligned
from attn._core import dots, masked_softmax
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._prompt import bias_of, check_prompt
from attn._settings import check_block, check_choice, check_count
from attn._wide import wide
from attn.biases import Bias
from attn.dense import _rows
from attn.masks import FULL, TERMS, Causal, Mask
from attn.mechanism import Mechanism

KINDS = ("dense", "random")


@auto_inside
def synthesizer_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    w1: Float[Array, "N H A"] | None = None,
    b1: Float[Array, "N A"] | None = None,
    w2: Float[Array, "N A L"] | None = None,
    b2: Float[Array, "N L"] | None = None,
    logits: Float[Array, "N R L"] | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax_j(e_ij) v_j over the keys that `mask` shows, per head: with `logits` R, e = R, the
    random Synthesizer; else e_i = W2 relu(W1 q_i + b1) + b2, the dense one. Columns are cut to S,
    rows to T; a bias is added to e.

    k only gives S: it is not read, so a NaN in it never shows; nor is q with `logits`. The paper
    feeds the token x where this takes q, a projection of it. Raises ValueError for arrays that are
    missing, superfluous or misshapen, and for T beyond R, S beyond L.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    form = _form(q, k, w1=w1, b1=b1, w2=w2, b2=b2, logits=logits)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    q, k = _read(q, logits), k[..., :0]
    return _rows.attend(form, q, k, v, mask=mask, bias=bias, dropout=dropout, block=block)


def _read(q, logits):
    """What is read of q: nothing with `logits`, so that no NaN in it shows."""
    return q if logits is None else q[..., :0]


def _form(q, k, *, w1=None, b1=None, w2=None, b2=None, logits=None):
    arrays = {"w1": w1, "b1": b1, "w2": w2, "b2": b2, "logits": logits}
    (T, N, H), S = q.shape[-3:], k.shape[-3]
    if logits is not None:
        R, L = _rows.last_sizes(logits, 2)
        wanted = {"logits": (N, R, L)}
    else:
        R, (A, L) = T, _rows.last_sizes(w2, 2)
        wanted = {"w1": (N, H, A), "b1": (N, A), "w2": (N, A, L), "b2": (N, L)}
    _rows.check_given(arrays, wanted)
    for name, length, most in (("k", S, L), ("q", T, R)):
        if length > most:
            raise ValueError(
                f"{name}: expected a length of at most {most}, which the arrays were made for, got "
                f"{length}; build the layer with a larger max_length for longer inputs"
            )
    dtype = wide(q).dtype
    if logits is not None:
        return _Random(logits[:, :T, :S].astype(dtype))
    w2, b2 = w2[..., :S], b2[:, :S]
    return _Dense(*(x.astype(dtype) for x in (w1, b1, w2, b2)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Random(_rows.Form):
    logits: Float[Array, "N T S"]

    def features(self, q, k):
        return jnp.moveaxis(self.logits, 0, 1), ()  # [T, N, S]

    def weigh(self, tile):
        e = jnp.swapaxes(jnp.take(tile.rows, tile.j, axis=-1), -3, -2)  # [N, b, c]
        e = jnp.broadcast_to(e, (*tile.seen.shape[:-3], *e.shape))
        return masked_softmax(e + tile.bias, tile.seen)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Dense(_rows.Form):
    w1: Float[Array, "N H A"]
    b1: Float[Array, "N A"]
    w2: Float[Array, "N A S"]
    b2: Float[Array, "N S"]

    def features(self, q, k):
        hidden = jnp.einsum("...tnh,nha->...tna", q, self.w1)
        hidden = jnp.add(*aligned(hidden, self.b1))
        # for the hidden layer, W2 and b2 act as a key for each position
        keys = jnp.moveaxis(self.w2, -1, 0)  # [S, N, A]
        return jax.nn.relu(hidden), (keys, self.b2.T[..., None])

    def weigh(self, tile):
        keys, offset = tile.columns
        offset = jnp.moveaxis(offset, -3, -1)  # [N, 1, c]
        e = jnp.add(*aligned(dots(tile.rows, keys), offset))
        return masked_softmax(e + tile.bias, tile.seen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthesizer(Mechanism):
    """Softmax over logits from the query alone ("dense") or learned directly ("random"), for
    lengths up to the max_length of its arrays (Tay et al. 2020); `hidden` units, the head width by
    default."""

    honours: ClassVar = (*TERMS, Bias)
    kind: Literal["dense", "random"] = "dense"
    hidden: int | None = None
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        check_choice("kind", self.kind, KINDS)
        if self.hidden is not None:
            check_count("hidden", self.hidden)
            if self.kind == "random":
                raise ValueError(f"hidden: random logits have no hidden layer, got {self.hidden}")
        check_rate(self.dropout_rate)
        check_block(self.block)

    @property
    def linear_memory(self):
        return self.kind == "dense"  # random logits are T x S themselves

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned) -> Array:
        self.check_learned(q, k, v, **learned)
        return synthesizer_attention(
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
        T, S = q.shape[-3], k.shape[-3]
        learned = {name: x.astype(wide(q).dtype) for name, x in learned.items()}
        if self.kind == "random":
            e = learned["logits"][:, :T, :S]
        else:
            hidden = jnp.einsum("...tnh,nha->...nta", wide(q), learned["w1"])
            hidden = jax.nn.relu(jnp.add(*aligned(hidden, learned["b1"][:, None])))
            e = jnp.einsum("...nta,nas->...nts", hidden, learned["w2"])
            e = jnp.add(*aligned(e, learned["b2"][:, None]))
        dropout = dropout_of(self, dropout_key, q, k)
        return _rows.whole(e[..., :S], q, k, v, mask=mask, bias=bias, dropout=dropout)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        self.check_learned(q, k, k, **learned)
        mask, bias = check_qkv(q, k, k, mask, bias)
        form = _form(q, k, **learned)
        q = _read(q, learned.get("logits"))
        return _rows.draw(form, q, k[..., :0], mask=mask, bias=bias)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        # LeCun normal; the paper has random logits "randomly initialized": unit normal, as scores
        draw = lambda key, *shape: jax.random.normal(key, shape, jnp.float32)
        if self.kind == "random":
            return {"logits": draw(key, num_heads, max_length, max_length)}
        a, b = jax.random.split(key)
        A = self.hidden or head_dim
        return {
            "w1": draw(a, num_heads, head_dim, A) * head_dim**-0.5,
            "b1": jnp.zeros((num_heads, A), jnp.float32),
            "w2": draw(b, num_heads, A, max_length) * A**-0.5,
            "b2": jnp.zeros((num_heads, max_length), jnp.float32),
        }

    def flops(self, T, S, N, K, H, D):
        A = self.hidden or H
        return 2 * T * S * N * D + (2 * T * N * A * (H + S) if self.kind == "dense" else 0)

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        # a key of width 1 in place of keys, which are not read
        return _cache.empty(batch, num_kv_heads, 1, value_dim, max_length, dtype)

    def prefill(self, q, k, v, *, max_length, bias=None, **learned):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal(), bias=bias_of(bias, q), **learned)
        return _cache.fill(jnp.zeros_like(k[..., :1]), v, max_length), out

    def step(self, state, q, k, v, *, bias=None, **learned):
        check_state(state, _cache.Cache, q)
        self.check_learned(q, k, v, **learned)
        if self.kind == "random":  # the row of this token, the only one that T = 1 will look up
            row = lambda x: lax.dynamic_slice_in_dim(x, state.length, 1, axis=1)
            learned = {"logits": row(learned["logits"])}

        def of_values(q, k, v, *, mask, **row):
            # what was not finite in a value comes back with its key
            keys = jnp.broadcast_to(k, (*k.shape[:-1], q.shape[-1]))
            return self(q, keys, v + k, mask=mask, **row, **learned)

        return _cache.decode(state, of_values, q, jnp.zeros_like(k[..., :1]), v, bias)

    @classmethod
    def examples(cls):
        return cls(hidden=5), cls(kind="random")
