"""Based (Arora et al. 2024, arXiv:2402.18668): softmax nearby, its Taylor expansion far away."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import _cache
from attn._axes import conjunction
from attn._blockwise import blockwise
from attn._core import dense_scores, isolate, seen_array
from attn._explicit import auto_inside
from attn._forms import visited_scores
from attn._inputs import check_state
from attn._prompt import check_prompt, state_for
from attn._settings import check_count
from attn._wide import wide
from attn.linearized import _work
from attn.linearized._family import Linearized
from attn.linearized._terms import State, Terms, divide
from attn.linearized.feature_maps import taylor
from attn.masks import FULL, Causal, Mask, Padding


def based_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    window: int = 64,
    chunk: int | None = None,
) -> Float[Array, "*B T N D"]:
    """sum_j w_ij v_j / sum_j w_ij for w = exp(s) where |i - j| < `window`, else 1 + s + s^2 / 2.

    s = q . k / sqrt(H). O(T (window (H + D) + H^2 D)) time, O(T) memory: meant for narrow heads (16
    in the paper), since the state has 1 + H + H (H + 1) / 2 rows. The paper's layers alternate
    between the expansion alone (`window=0`) and a softmax in a window; both under one normaliser in
    one layer is LoLCATs' (Zhang et al. 2024, arXiv:2410.10254), here without its learned weight for
    the window, and with exp(s) as it is: LoLCATs divides the weights in the window, and no others,
    by the largest of them. Under `Causal(offset)` query i stands at position i + offset. Honours
    `Causal`, `Padding` and `Segments` joined by `&`, else NotImplementedError. Raises ValueError
    for a negative window.
    """
    return Based(window=window, chunk=chunk)(q, k, v, mask=mask, bias=bias)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """The last `window` keys and values, and the sums of those before them."""

    near: _cache.Cache
    far: State


@dataclasses.dataclass(frozen=True, kw_only=True)
class Based(Linearized):
    """Softmax in a window and its second-order Taylor expansion outside it (Arora et al. 2024)."""

    squares: ClassVar = True
    window: int = 64

    def __post_init__(self):
        super().__post_init__()
        check_count("window", self.window, least=0)

    def terms(self, q, k):
        return Terms(taylor(q)[0], taylor(k)[0])

    @auto_inside
    def __call__(self, q, k, v, *, mask=FULL, bias=None) -> Array:
        mask, _, _ = self._checked(q, k, v, mask, bias, {})
        if v.shape[-1] == 0:
            return jnp.zeros((*q.shape[:-1], 0), jnp.result_type(q))
        dtype, (q, k, v) = jnp.result_type(q), map(wide, (q, k, v))
        far = self._far(q, k, _with_one(v), mask)
        near = blockwise(q, k, v, self._near_mask(q, k, mask), None, scale=None)
        return _join(*near, far).astype(dtype)

    def _near_mask(self, q, k, mask) -> Mask:
        """The mask of the `window` positions up to the query's or, if not causal, less than
        `window` away."""
        causal = mask.take(Causal)[0][0]
        near = ~Causal((0 if causal is None else causal.offset) - self.window)
        near = near & Causal(self.window - 1) if causal is None else near
        return (mask & near).sized(q.shape[-3], k.shape[-3])

    def _far(self, q, k, v, mask) -> Float[Array, "*B T N D"]:
        """The sums, not normalised, over the positions outside the window."""
        causal, padding, segments = mask.take(*self.honours)[0]
        if causal is not None:
            return self._up_to(causal.offset - self.window, q, k, v, mask)
        if self.window == 0:
            return super().__call__(q, k, v, mask=mask)
        before = self._up_to(-self.window, q, k, v, mask)
        # what comes after is what comes before in a mirror, where the last key stands at S - 1
        T, S = q.shape[-3], k.shape[-3]
        mirrored = FULL
        if padding is not None:
            keys, queries = padding.seen_keys(S), padding.seen_queries(T)
            mirrored &= Padding(keys=jnp.flip(keys, -1), queries=jnp.flip(queries, -1))
        if segments is not None:
            mirrored &= jax.tree.map(lambda ids: jnp.flip(ids, -1), segments)
        q, k, v = (jnp.flip(x, -3) for x in (q, k, v))
        return before + jnp.flip(self._up_to(S - T - self.window, q, k, v, mirrored), -3)

    def _up_to(self, offset: int, q, k, v, mask) -> Float[Array, "*B T N D"]:
        """The sums, not normalised, of query i over keys up to i + offset."""
        if q.shape[-3] + offset <= 0:  # there are none: all of a short text is in the window
            return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        return super().__call__(q, k, v, mask=mask & Causal(offset))

    def weights(self, q, k, *, mask=FULL, bias=None):
        mask, _, _ = self._checked(q, k, k, mask, bias, {})
        s, seen = dense_scores(q, k, mask, None, None, None)
        near = conjunction(seen, seen_array(self._near_mask(q, k, mask), *s.shape[-2:]))
        s = jnp.where(seen, s, 0)
        # all times exp(-top), so that no exponential overflows and not all of a row underflow
        top = jnp.where(near, s, -jnp.inf).max(-1, keepdims=True, initial=-jnp.inf)
        top = _top(top, (seen & ~near).any(-1, keepdims=True))
        exact = jnp.exp(jnp.where(near, s - top, 0))
        w = jnp.where(near, exact, (1 + s + s**2 / 2) * jnp.exp(-jnp.maximum(top, 0)))
        w = jnp.where(seen, w, 0)
        return divide(w, w.sum(-1))

    def loop(self, q, k, v):
        raise NotImplementedError("Based is not one recurrence: decode it by `step`")

    def flops(self, T, S, N, K, H, D):
        near = visited_scores(
            (~Causal(-self.window) & Causal(self.window - 1)).sized(T, S), T, S, N
        )
        far = super().flops(T, S, N, K, H, D + 1)
        if self.window:  # before the window and, in a mirror, after it
            size = self._sizes(N, K, H, D + 1)
            once = lambda length: _work.in_order(size, length, N, D + 1, self.chunk, False)
            before, after = T > self.window, S > self.window
            far = before * once(max(S, T - self.window)) + after * once(S)
        return 2 * near * N * (H + D) + far

    def init_state(self, batch, *, num_kv_heads, head_dim, value_dim, dtype="float32", **sizes):
        near = _cache.empty(batch, num_kv_heads, head_dim, value_dim, self.window, dtype)
        sizes |= {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": dtype}
        return Split(near, super().init_state(batch, value_dim=value_dim + 1, **sizes))

    def prefill(self, q, k, v, *, max_length):
        check_prompt(q, k, v, max_length)
        out = self(q, k, v, mask=Causal())
        left = max(k.shape[-3] - self.window, 0)  # tokens that are no longer in the window
        gone = lambda x: x[..., :left, :, :]
        far = state_for(self, q, k, v, max_length).far
        far, _ = super().step(far, gone(q), gone(k), gone(_with_one(v)))
        return Split(_cache.fill(k, v, self.window), far), out

    def step(self, state, q, k, v):
        self._checked_tokens(q, k, v, {})
        check_state(state, Split, q)
        _cache.check_size(state.near, self.window)
        _cache.check_one_token(q)
        near, query = state.near, wide(q)
        if self.window == 0:
            far, sums = super().step(state.far, q, k, _with_one(v))
            out = divide(sums[..., :-1], sums[..., -1])
            return Split(near, far), out.astype(jnp.result_type(q))
        # the token that leaves the window; of value 0, hence of no weight, while there is none
        oldest = lambda x: jnp.take(x, (near.length % self.window)[None], axis=near.poison.ndim - 1)
        heads_second = lambda x: jnp.swapaxes(x, -3, -2)
        old_k = heads_second(oldest(near.k) + oldest(near.poison)[..., None])
        old_v = _with_one(heads_second(oldest(near.v)))
        leaves = near.length >= self.window
        old_k, old_v = (jnp.where(leaves, wide(x), 0) for x in (old_k, old_v))
        far, sums = super().step(state.far, query, old_k, old_v)
        near = _cache.append(near, k, v)
        keys, values, filled = _cache.tokens(near)
        out = blockwise(query, wide(keys), wide(values), filled, None, scale=None)
        return Split(near, far), _join(*out, sums).astype(jnp.result_type(q))

    @classmethod
    def examples(cls):
        return cls(window=5, chunk=8), cls(window=0, chunk=8)


def _with_one(v):
    """v with a channel of ones, whose weighted sum is the normaliser."""
    return jnp.concatenate([v, jnp.ones((*v.shape[:-1], 1), jnp.result_type(v))], -1)


def _join(near, lse, far):
    """(exp(lse) near + far) / (exp(lse) + normaliser), the normaliser in far's last channel."""
    # NaN rows are computed as 0 and made NaN again: 0 * NaN would reach what they saw
    (near, near_poison), (far, far_poison) = isolate(near), isolate(far)
    none, lost = lse == -jnp.inf, jnp.isnan(lse)
    normaliser = far[..., -1]
    top = _top(jnp.where(lost, 0, lse), normaliser > 0)
    share = jnp.where(none | lost, 0, jnp.exp(jnp.where(none | lost, 0, lse - top)))
    rest = jnp.exp(-jnp.maximum(top, 0))
    numerator = share[..., None] * near + rest[..., None] * far[..., :-1]
    out = divide(numerator, share + rest * normaliser)
    return out + jax.lax.stop_gradient(near_poison + far_poison)[..., None]


def _top(largest, far):
    """The exponent to factor out of a row: the largest of its near keys and, where it has `far`
    ones, at least 0, the exponent of their weights; 0 if it sees nothing."""
    top = jnp.where(far, jnp.maximum(largest, 0), largest)
    return jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
