"""Luong attention (Luong et al. 2015, arXiv:1508.04025): three scores, global or local.

O(T S) time, times A for "concat"; O(T + S) memory.
"""

import dataclasses
import functools
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._axes import aligned
from attn._core import masked_softmax
from attn._dropout import as_dropout, check_rate, dropout_of, rate_of
from attn._explicit import auto_inside
from attn._inputs import check_qkv, check_state
from attn._prompt import bias_of, check_prompt
from attn._settings import check_block, check_count, check_room_for
from attn._wide import wide
from attn.biases import Bias
from attn.dense import _rows
from attn.dense._alignment import Global, Predictive, real_keys
from attn.masks import FULL, TERMS, Causal, Mask, Window
from attn.mechanism import Mechanism

SCORES, LOCALS = ("dot", "general", "concat"), (None, "m", "p")


@auto_inside
def luong_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    score: Literal["dot", "general", "concat"] = "dot",
    local: Literal["m", "p"] | None = None,
    window: int = 10,
    score_projection: Float[Array, "N H H"] | None = None,
    query_projection: Float[Array, "N H A"] | None = None,
    key_projection: Float[Array, "K H A"] | None = None,
    score_vector: Float[Array, "N A"] | None = None,
    position_projection: Float[Array, "N H P"] | None = None,
    position_vector: Float[Array, "N P"] | None = None,
    mask: Mask = FULL,
    bias: Bias | Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax_j(score(q_i, k_j)) v_j over the keys that `mask` shows, per head; a bias is added to
    the scores.

    `score`: "dot" is q . k, unscaled; "general" q^T W k with W = `score_projection`;
    "concat" a . tanh(W [q; k]) with a = `score_vector` and W in two parts, `query_projection` and
    `key_projection`.
    `local`, with D = `window`: "m" sees j from i - D to i + D. "p" sees |j - p_i| <= D for
    p_i = S sigmoid(a . tanh(W q_i)), W = `position_projection`, a = `position_vector`, and
    multiplies the softmax over those keys by exp(-(j - p_i)^2 / (2 sigma^2)), sigma = D / 2: rows
    sum to less than 1, as in the paper. S is the number of keys that the mask's `Padding` leaves,
    and p_i counts from the first of them. p_i comes from q_i alone, so "p" may be used with
    `Causal`, which hides the keys after i in its window.

    Raises ValueError for unknown names, a window below 1, and arrays that are missing, superfluous
    or misshapen.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    _check(score, local, window)
    arrays = {
        "score_projection": score_projection,
        "query_projection": query_projection,
        "key_projection": key_projection,
        "score_vector": score_vector,
        "position_projection": position_projection,
        "position_vector": position_vector,
    }
    form = _form(q, k, mask, score, local, window, arrays)
    mask = _narrowed(mask, local, window)
    dropout = as_dropout(dropout_rate, dropout_key, q, k)
    return _rows.attend(form, q, k, v, mask=mask, bias=bias, dropout=dropout, block=block)


def _form(q, k, mask, score, local, window, arrays) -> Global:
    """The score with its learned arrays, once they are checked."""
    _check_arrays(q, k, score, local, arrays)
    a = {n: x.astype(wide(q).dtype) for n, x in arrays.items() if x is not None}
    if local != "p":
        return Global(a, score)
    first, real = (x.astype(wide(q).dtype) for x in real_keys(mask, k.shape[-3]))
    return Predictive(a, score, first, real, window)


def _narrowed(mask, local, window):
    """The mask, with the window around p_i = i if `local` is "m"."""
    return mask & Window(window, window) if local == "m" else mask


def _check(score, local, window):
    if score not in SCORES:
        raise ValueError(f"score: expected one of {', '.join(map(repr, SCORES))}, got {score!r}")
    if local not in LOCALS:
        raise ValueError(f"local: expected 'm', 'p' or None, got {local!r}")
    check_count("window", window)


def _check_arrays(q, k, score, local, arrays):
    (N, H), K = q.shape[-2:], k.shape[-2]
    (A,) = _rows.last_sizes(arrays["score_vector"], 1) if score == "concat" else (H,)
    (P,) = _rows.last_sizes(arrays["position_vector"], 1) if local == "p" else (H,)
    _rows.check_given(arrays, _learned_shapes(score, local, N, K, H, A, P))


def _learned_shapes(score, local, N, K, H, A, P) -> dict[str, tuple[int, ...]]:
    """The learned arrays by name; A and P are the widths of the hidden layers."""
    shapes = {"score_projection": (N, H, H)} if score == "general" else {}
    if score == "concat":
        shapes |= {"query_projection": (N, H, A), "key_projection": (K, H, A)}
        shapes |= {"score_vector": (N, A)}
    if local == "p":
        shapes |= {"position_projection": (N, H, P), "position_vector": (N, P)}
    return shapes


def _whole_scores(score, q, k, a) -> Float[Array, "*B N T S"]:
    """The definition of each score, for all pairs at once."""
    groups = q.shape[-2] // k.shape[-2]
    if score == "concat":
        u = jnp.einsum("...tnh,nha->...nta", q, a["query_projection"])
        x = jnp.einsum("...skh,kha->...ksa", k, a["key_projection"])
        x = jnp.repeat(x, groups, axis=-3)
        hidden = jnp.tanh(u[..., :, None, :] + x[..., None, :, :])
        return jnp.einsum("...ntsa,na->...nts", hidden, a["score_vector"])
    W = a.get("score_projection", jnp.eye(q.shape[-1], dtype=q.dtype)[None])
    W = jnp.broadcast_to(W, (q.shape[-2], *W.shape[1:]))
    keys = jnp.repeat(k, groups, axis=-2)
    return jnp.einsum("...tnh,nhg,...sng->...nts", q, W, keys)


def _from_predicted(q, mask, S, a) -> Float[Array, "*B N T S"]:
    """j - p_i for all pairs, p_i = S sigmoid(a . tanh(W q_i)) from the first real key."""
    hidden = jnp.tanh(jnp.einsum("...tnh,nhp->...ntp", q, a["position_projection"]))
    p = jax.nn.sigmoid(jnp.einsum("...ntp,np->...nt", hidden, a["position_vector"]))
    j = jnp.arange(S).astype(p.dtype)
    ends = (x.astype(p.dtype)[..., None, None] for x in real_keys(mask, S))
    first, length, p = aligned(*ends, p)
    p = (first + length * p)[..., None]  # [*B, N, T, 1]
    return jnp.subtract(*aligned(j, p))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Luong(Mechanism):
    """Softmax of q . k (unscaled), q^T W k or a . tanh(W [q; k]) over all keys, those near i (local
    "m") or those near a predicted position, weighted by a Gaussian ("p") (Luong et al. 2015).

    "p" does not decode: its positions are fractions of a length not known before the end.
    """

    honours: ClassVar = (*TERMS, Bias)
    score: Literal["dot", "general", "concat"] = "dot"
    local: Literal["m", "p"] | None = None
    window: int = 10
    dropout_rate: float = 0.0
    block: int | None = None

    def __post_init__(self):
        _check(self.score, self.local, self.window)
        check_rate(self.dropout_rate)
        check_block(self.block)

    @property
    def crosses(self) -> bool:
        return self.local is None

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **learned) -> Array:
        self.check_learned(q, k, v, **learned)
        return luong_attention(
            q,
            k,
            v,
            score=self.score,
            local=self.local,
            window=self.window,
            mask=mask,
            bias=bias,
            dropout_rate=rate_of(self, dropout_key),
            dropout_key=dropout_key,
            block=self.block,
            **learned,
        )

    def reference(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None, **a):
        check_qkv(q, k, v, mask, bias)
        self.check_learned(q, k, v, **a)
        q, k, v = wide(q), wide(k), wide(v)
        a = {name: x.astype(q.dtype) for name, x in a.items()}
        s, weigh = _whole_scores(self.score, q, k, a), masked_softmax
        if self.local == "p":
            apart = _from_predicted(q, mask, k.shape[-3], a)
            fall = jnp.exp(-2 * jnp.square(apart / self.window))
            weigh = lambda s, seen: masked_softmax(s, seen & (abs(apart) <= self.window)) * fall
        mask = _narrowed(mask, self.local, self.window)
        dropout = dropout_of(self, dropout_key, q, k)
        return _rows.whole(s, q, k, v, mask=mask, bias=bias, dropout=dropout, weigh=weigh)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        self.check_learned(q, k, k, **learned)
        mask, bias = check_qkv(q, k, k, mask, bias)
        form = _form(q, k, mask, self.score, self.local, self.window, learned)
        mask = _narrowed(mask, self.local, self.window)
        return _rows.draw(form, q, k, mask=mask, bias=bias)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        N, K, H = num_heads, num_kv_heads, head_dim
        shapes = _learned_shapes(self.score, self.local, N, K, H, H, H)
        # not the paper's uniform +-0.1, made for its 1000 units: LeCun normal does at any width
        keys = jax.random.split(key, len(shapes) or 1)
        draw = lambda key, shape: jax.random.normal(key, shape, jnp.float32) * H**-0.5
        return {name: draw(key, shape) for key, (name, shape) in zip(keys, shapes.items())}

    def flops(self, T, S, N, K, H, D):
        met = _rows.met_pairs(_narrowed(FULL, self.local, self.window), T, S, N, self.block)
        features = {"dot": 0, "general": T * N, "concat": T * N + S * K}[self.score]
        features += T * N if self.local == "p" else 0
        return 2 * met * N * (H + D) + 2 * features * H * H

    def init_state(
        self, batch, *, num_heads, num_kv_heads, head_dim, value_dim, max_length, dtype="float32"
    ):
        check_room_for(batch, max_length)
        return _cache.empty(batch, num_kv_heads, head_dim, value_dim, self._kept(max_length), dtype)

    def prefill(self, q, k, v, *, max_length, bias=None, **learned):
        check_prompt(q, k, v, max_length)
        kept = self._kept(max_length)
        out = self(q, k, v, mask=Causal(), bias=bias_of(bias, q), **learned)
        return _cache.fill(k, v, kept), out

    def step(self, state, q, k, v, *, bias=None, **learned):
        check_state(state, _cache.Cache, q)
        check_qkv(q, k, v, FULL)
        if self.local is None:
            return _cache.decode(state, functools.partial(self, **learned), q, k, v, bias)
        _cache.check_one_token(q)
        _cache.check_size(state, self.window + 1)
        row = _cache.bias_row(bias, state, q)
        state = _cache.append(state, k, v)  # a ring of window + 1 keys: it holds the window
        keys, values, filled = _cache.tokens(state)
        plain = dataclasses.replace(self, local=None)
        out = plain(*(wide(x) for x in (q, keys, values)), mask=filled, bias=row, **learned)
        return state, out.astype(jnp.result_type(q))

    def _kept(self, max_length):
        if self.local == "p":
            raise NotImplementedError(
                "Luong: local='p' does not decode token by token: its positions are shares of a "
                "length that is not known before the end; use local='m' or None"
            )
        return self.window + 1 if self.local == "m" else max_length

    @classmethod
    def examples(cls):
        return cls(local="m", window=3), cls(score="concat", local="p", window=4)
