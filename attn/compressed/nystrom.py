"""Nystroemformer (Xiong et al. 2021, arXiv:2102.03902): softmax by M landmarks, O(T M) time."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn._arrays import check_floats
from attn._axes import aligned
from attn._core import apply_weights, dots, masked_softmax, mix
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._settings import check_count
from attn._tokens import clean, matrix_of, no_output, seen_tokens, to_heads
from attn._wide import wide
from attn.masks import FULL, Mask, Padding
from attn.mechanism import Mechanism

HONOURS = (Padding,)


@auto_inside
def nystrom_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    mask: Mask = FULL,
    bias=None,
    landmarks: int = 64,
    iterations: int = 6,
    conv: Float[Array, "K C"] | None = None,
) -> Float[Array, "*B T N D"]:
    """softmax(q l^T) pinv(softmax(p l^T)) softmax(p k^T) v, scores over sqrt(H), O((T + S) M).

    The landmarks p of q and l of k are the means of M segments, as even as possible, of the visible
    tokens. With no more tokens than landmarks, each is its own: the exact softmax. If T = S, token
    i is query i and key i, so a query whose key is padded is in no mean. `pinv` is the paper's
    iteration, initialised by the norms of each batch row and head separately. (The authors' code
    averages padded tokens too, as zeros, and by default takes one norm for all rows and heads.)
    `conv` adds sum_c conv_c v_{i+c-C//2}, C odd. Honours `Padding`; the means mix all positions, so
    `Causal` and the rest raise NotImplementedError. Raises ValueError for settings below 1 and for
    a `conv` of the wrong shape.
    """
    mask, bias = check_qkv(q, k, v, mask, bias)
    Nystrom(landmarks=landmarks, iterations=iterations)
    (padding,), rest = mask.take(*HONOURS)
    refuse_rest("nystrom", rest, bias, HONOURS)
    (*batch, T, _, _), (S, K) = q.shape, v.shape[-3:-1]
    if conv is not None:
        check_floats(conv=conv)
        if conv.ndim != 2 or len(conv) != K or conv.shape[1] % 2 == 0:
            raise ValueError(f"conv: expected [{K}, an odd number of taps], got {list(conv.shape)}")
    if 0 in (*batch, T, S):
        return no_output(q, v)
    there = seen_tokens(padding, tuple(batch), T, S)
    return _attend(landmarks, iterations, q, k, v, *there, conv)


@functools.partial(jax.jit, static_argnums=(0, 1))  # for calls outside of jit
def _attend(landmarks, iterations, q, k, v, asks, seen, conv):
    """For the tokens that exist, [*B, T] and [*B, S]."""
    T, N, H = q.shape[-3:]
    (queries, q_poison), (keys, k_poison), (values, v_poison) = (
        clean(x, there) for x, there in ((q, asks), (k, seen), (v, seen))
    )
    means = _Means(asks, seen, landmarks, queries.dtype)
    out = _approximated(queries * H**-0.5, keys, values, means, iterations)
    if conv is not None:
        out = out + _convolved(values, conv.astype(out.dtype), T, N)
    # what is not finite reaches all that it is mixed with: its head, and through the landmarks of q
    # other queries too, but for those that are read exactly
    mixed = jnp.where(means.averaged[..., None], q_poison, 0).sum(-2, keepdims=True)
    exact = means.few_keys[..., None] | means.own_row
    mixed = jnp.where(exact[..., None], 0, mixed)
    mixed = mixed + to_heads((k_poison + v_poison).sum(-2, keepdims=True), N)
    out = out + jax.lax.stop_gradient(mixed + q_poison)[..., None]
    live = asks & seen.any(-1, keepdims=True)
    return jnp.where(live[..., None, None], out, 0).astype(jnp.result_type(q))


class _Means:
    """The matrices that average tokens to landmarks, and which tokens and landmarks there are."""

    def __init__(self, asks, seen, landmarks, dtype):
        T, S = asks.shape[-1], seen.shape[-1]
        self.asks, self.seen = asks, seen
        # the queries that are in a mean
        self.averaged = asks & seen if T == S else asks
        # [*B, M, T] and [*B, M, S]
        self.of_q, self.of_k = (
            averages(x, min(landmarks, x.shape[-1]), dtype) for x in (self.averaged, seen)
        )
        # landmarks of at least one token
        self.live_q, self.live_k = ((x > 0).any(-1) for x in (self.of_q, self.of_k))
        # where every key is its own landmark; elsewhere, the queries that are their own
        self.few_keys = seen.sum(-1) <= landmarks
        few_queries = (self.averaged.sum(-1) <= landmarks) & ~self.few_keys
        self.own_row = self.averaged & few_queries[..., None]


def averages(seen: Bool[Array, "*B S"], landmarks: int, dtype) -> Float[Array, "*B M S"]:
    """Row m averages segment m of the visible tokens, in order; the first segments may hold one
    more."""
    n = seen.sum(-1, keepdims=True, dtype=jnp.int32)
    used = jnp.clip(n, 1, landmarks)
    size, longer = n // used, n % used
    place = jnp.cumsum(seen, -1, dtype=jnp.int32) - 1
    beyond = place - longer * (size + 1)
    late = longer + beyond // jnp.maximum(size, 1)
    segment = jnp.where(beyond < 0, place // (size + 1), late)[..., None, :]
    number = jnp.arange(landmarks, dtype=jnp.int32)[:, None]
    member = seen[..., None, :] & jnp.equal(*aligned(segment, number))
    member = member.astype(dtype)
    return member / jnp.maximum(member.sum(-1, keepdims=True), 1)


def pseudo_inverse(a: Float[Array, "*B M L"], iterations: int) -> Float[Array, "*B L M"]:
    """Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / |A|_1, of a softmax A."""
    most = a.sum(-2).max(-1)[..., None, None]
    _, eye = aligned(a, jnp.eye(a.shape[-2], dtype=a.dtype))

    def better(z, _):
        az = a @ z
        return z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4, None

    start = a.mT / jnp.where(most == 0, 1, most)
    return jax.lax.scan(better, start, length=iterations)[0]


def _softmaxes(q, k, means):
    """The paper's three kernels: f [*B, N, T, L], a [*B, N, M, L] and b [*B, N, M, S]."""
    p = jnp.einsum("...mt,...tnh->...mnh", means.of_q, q)
    lm = jnp.einsum("...ms,...skh->...mkh", means.of_k, k)
    against = lambda rows, columns: rows[..., None, :, None] & columns[..., None, None, :]
    f = masked_softmax(dots(q, lm), against(means.asks, means.live_k))
    a = masked_softmax(dots(p, lm), against(means.live_q, means.live_k))
    b = masked_softmax(dots(p, k), against(means.live_q, means.seen))
    return f, a, b


def _approximated(q, k, v, means, iterations) -> Float[Array, "*B T N D"]:
    """The approximation, for arrays that are finite, 0 where hidden, and scaled."""
    f, a, b = _softmaxes(q, k, means)
    heads_first = lambda x: jnp.swapaxes(x, -3, -2)
    landed = heads_first(mix(b, v))  # [*B, N, M, D]
    own = heads_first(jnp.einsum("...ms,...skd->...mkd", means.of_k, v))
    own = jnp.repeat(own, q.shape[-2] // v.shape[-2], axis=-3)
    # keys that are their own landmarks are read exactly, and so are rows of such queries
    few_keys = means.few_keys[..., None, None, None]
    read = jnp.where(few_keys, own, pseudo_inverse(a, iterations) @ landed)
    rows = jnp.einsum("...mt,...nmd->...ntd", means.of_q, landed)
    return heads_first(jnp.where(means.own_row[..., None, :, None], rows, f @ read))


def _convolved(v, conv, T, N):
    """sum_c conv_c v_{i+c-C//2} for T rows i, 0 beyond either end."""
    C, S = conv.shape[-1], v.shape[-3]
    ends = [(0, 0)] * (v.ndim - 3) + [(C // 2, max(T + C // 2 - S, 0)), (0, 0), (0, 0)]
    v = jnp.pad(v, ends)
    v, conv = aligned(v, conv)
    tap = lambda c: conv[..., c, None] * jax.lax.slice_in_dim(v, c, c + T, axis=v.ndim - 3)
    return jnp.repeat(sum(map(tap, range(C))), N // v.shape[-2], axis=-2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nystrom(Mechanism):
    """Softmax through segment means, a Nystroem approximation (Xiong et al. 2021).

    `conv_kernel`, odd, is the number of taps of the paper's depthwise convolution of values, one
    kernel per key head.
    """

    honours: ClassVar = HONOURS
    landmarks: int = 64
    iterations: int = 6
    conv_kernel: int | None = None

    def __post_init__(self):
        check_count("landmarks", self.landmarks)
        check_count("iterations", self.iterations)
        if self.conv_kernel is not None:
            check_count("conv_kernel", self.conv_kernel)
            if self.conv_kernel % 2 == 0:
                raise ValueError(f"conv_kernel: expected an odd number, got {self.conv_kernel}")

    def __call__(self, q, k, v, *, mask=FULL, bias=None, **learned) -> Array:
        self.check_learned(q, k, v, **learned)
        settings = {"landmarks": self.landmarks, "iterations": self.iterations, **learned}
        return nystrom_attention(q, k, v, mask=mask, bias=bias, **settings)

    def reference(self, q, k, v, *, mask=FULL, bias=None, **learned):
        self.check_learned(q, k, v, **learned)
        mask, bias = check_qkv(q, k, v, mask, bias)
        (padding,), rest = mask.take(*HONOURS)
        refuse_rest("nystrom", rest, bias, HONOURS)
        (*batch, T, N, H), (S, K) = q.shape, k.shape[-3:-1]
        if 0 in (*batch, T, S):
            return no_output(wide(q), v)
        asks, seen = seen_tokens(padding, tuple(batch), T, S)
        q, k = clean(q, asks)[0], clean(k, seen)[0]
        means = _Means(asks, seen, self.landmarks, q.dtype)
        f, a, b = _softmaxes(q * H**-0.5, k, means)
        exact_k, exact_q = f @ means.of_k[..., None, :, :], means.of_q.mT[..., None, :, :] @ b
        few_keys = means.few_keys[..., None, None, None]
        w = jnp.where(few_keys, exact_k, f @ pseudo_inverse(a, self.iterations) @ b)
        w = jnp.where(means.own_row[..., None, :, None], exact_q, w)
        if (conv := learned.get("conv")) is not None:
            tap = jnp.arange(S)[None] - jnp.arange(T)[:, None] + conv.shape[1] // 2  # [T, S]
            near = (tap >= 0) & (tap < conv.shape[1])
            band = jnp.where(near[None], wide(conv)[:, jnp.clip(tap, 0, conv.shape[1] - 1)], 0)
            w = jnp.add(*aligned(w, jnp.repeat(band, N // K, axis=0).astype(w.dtype)))
        shown = asks[..., None, :, None] & seen[..., None, None, :]
        return apply_weights(jnp.where(shown, w, 0), wide(v), shown)

    def weights(self, q, k, *, mask=FULL, bias=None, **learned):
        return matrix_of(lambda q, k, v: self(q, k, v, mask=mask, bias=bias, **learned), q, k)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        if self.conv_kernel is None:
            return {}
        # as the authors' convolution starts: uniform, by the number of taps
        most = self.conv_kernel**-0.5
        shape = (num_kv_heads, self.conv_kernel)
        return {"conv": jax.random.uniform(key, shape, jnp.float32, -most, most)}

    def flops(self, T, S, N, K, H, D):
        M, L = min(self.landmarks, T), min(self.landmarks, S)
        # of queries and what they read, of keys and their values
        means = 2 * (H + D) * (M * T * N + L * S * K)
        softmaxes = 2 * N * (T * L * (H + D) + M * S * (H + D) + M * L * (H + D))
        return means + softmaxes + self.iterations * 2 * N * M * M * (2 * L + 2 * M)

    @classmethod
    def examples(cls):
        return cls(landmarks=4, conv_kernel=3), cls(landmarks=3, iterations=8), cls(landmarks=24)
