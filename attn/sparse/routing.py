"""Routing Transformer (Roy et al. 2020, arXiv:2003.05997): attention among tokens of a cluster."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats
from attn._axes import aligned
from attn._core import apply_weights, masked_softmax, scores
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._settings import check_count, is_number
from attn._tokens import clean, no_output, own_tokens
from attn._wide import over_root, wide
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse import _buckets

HONOURS = (Padding,)
AT_ONCE = 64  # clusters that are worked on together


@auto_inside
def routing_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    centroids: Float[Array, "K C H"],
    window: int = 64,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """softmax(q' k'^T / sqrt(H)) v within clusters, q' and k' layer-normed without scale.

    Each of the C centroids of a key head takes the `window` queries of each query head and the
    `window` keys most similar to it (q' . c, ties by position). The output of a query in several
    clusters is the mean of theirs; in none, 0. (The authors' code scales before it normalises,
    which cancels the 1 / sqrt(H): its logits are sqrt(H) times the paper's and these.) Keys hidden
    by `Padding` are in no cluster; nor, if T = S and `Padding` does not say which queries exist,
    are the queries at their positions.

    O(T C + C window^2) time: T^1.5 with C = window = sqrt(T). Gradients do not reach the centroids,
    which follow the tokens by `updated_centroids`. Honours `Padding`; a later token pushes an
    earlier one out of a cluster, so `Causal` and the rest raise NotImplementedError. ValueError for
    centroids of another shape and a window below 1.
    """
    padding = _checked(q, k, v, mask, bias, centroids, window)
    if 0 in (*q.shape[:-2], k.shape[-3]):
        return no_output(q, v)
    return _attend(window, q, k, v, padding, centroids)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of jit
def _attend(window, q, k, v, padding, centroids) -> Float[Array, "*B T N D"]:
    *batch, T, N, _ = q.shape
    S, K = k.shape[-3:-1]
    q = _buckets.where_finite(q, centroids)
    centroids = centroids[:, : _apart(centroids.shape[1], window, T, S)]
    rows, columns = _choose(q, k, padding, centroids, window)
    live, seen = own_tokens(padding, tuple(batch), T, S)
    (x, x_poison), (y, y_poison), (z, z_poison) = (
        clean(a, there) for a, there in ((q, live), (k, seen), (v, seen))
    )
    flags = [jnp.isnan(flag)[..., None] for flag in (x_poison, y_poison + z_poison)]
    x, y = on_sphere(x) * x.shape[-1] ** -0.5, on_sphere(y)
    arrays = [_buckets.head_rows(a, K) for a in (x, y, z, *flags)]
    out = jax.vmap(jax.vmap(_head))(*arrays, rows, columns)
    return _buckets.as_heads(out, (*batch, T, N, 0)).astype(jnp.result_type(q))


def _apart(clusters: int, window: int, T: int, S: int) -> int:
    """How many clusters are worked out: where each holds all queries and keys, one is the mean."""
    return 1 if window >= max(T, S) else clusters


def _head(q, k, v, q_lost, lost, rows, columns):
    """The attention output of the query rows [Tg, H] of one key head: the mean over clusters."""
    Tg, S = len(q), len(k)

    def attend(rows, columns, q, k, v, q_lost, lost):
        seen = (rows < Tg)[:, :, None] & (columns < S)[:, None, :]
        lost = (seen & (q_lost | jnp.swapaxes(lost, -1, -2))).any(-1)
        return _buckets.small_softmax(q, k, v, seen)[0], lost

    taken = [_buckets.pick(x, rows) for x in (q, q_lost)]
    asked = [_buckets.pick(x, columns) for x in (k, v, lost)]
    arrays = (rows, columns, taken[0], *asked[:2], taken[1], asked[2])
    out, bad = _buckets.map_in_blocks(attend, arrays, AT_ONCE)
    add = lambda x: jnp.zeros((Tg, *x.shape[2:]), x.dtype).at[rows].add(x, mode="drop")
    clusters = jnp.maximum(add(jnp.ones(rows.shape, out.dtype)), 1)
    nan = jnp.where(add(bad.astype(out.dtype)) > 0, jnp.nan, 0).astype(out.dtype)
    return add(out) / clusters[:, None] + nan[:, None]


def on_sphere(x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """Layer norm without scale, in at least float32: all have one norm unless nearly constant."""
    x = wide(x)
    return over_root(x - x.mean(-1, keepdims=True), jnp.mean)


def updated_centroids(
    centroids: Float[Array, "K C H"],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    *,
    mask: Mask = FULL,
    decay: float = 0.999,
) -> Float[Array, "K C H"]:
    """The centroids after one step of the paper's online k-means: unit vectors, without gradients.

    c <- decay c + (1 - decay) m with m the mean of all q' and k' nearest to c; a centroid with none
    stays. (The paper writes a sum. The authors' code divides by counts that it averages over steps
    as it does the sums, has centroids that are not unit vectors, and pulls q and k towards them by
    a loss of 1e-4 times their distance.)
    """
    padding = _checked(q, k, k, mask, None, centroids, 1)
    if not is_number(decay) or not 0 <= decay <= 1:
        raise ValueError(f"decay: expected a number from 0 to 1, got {decay!r}")
    *batch, T, _, _ = q.shape
    old, decay = lax.stop_gradient(centroids).astype(jnp.float32), float(decay)
    total, count = jnp.zeros_like(old), jnp.zeros_like(old[..., 0])
    for x, there in zip((q, k), _buckets.there(padding, batch, T, k.shape[-3])):
        fine = jnp.isfinite(x).all(-1) & there.reshape(*batch, -1, 1)
        x = _buckets.head_rows(on_sphere(_buckets.selecting(x)), len(old)).astype(old.dtype)
        fine = _buckets.head_rows(fine[..., None], len(old))
        near = jnp.einsum("bklh,kch->bklc", x, old, precision="highest").argmax(-1)
        near = jax.nn.one_hot(near, old.shape[1], dtype=old.dtype) * fine.astype(old.dtype)
        total += jnp.einsum("bklc,bklh->kch", near, x)
        count += near.sum((0, 2))
    mean = total / jnp.maximum(count, 1)[..., None]
    new = jnp.where(count[..., None] > 0, decay * old + (1 - decay) * mean, old)
    new = new / jnp.maximum(jnp.linalg.norm(new, axis=-1, keepdims=True), 1e-12)
    return new.astype(centroids.dtype)


def _checked(q, k, v, mask, bias, centroids, window) -> Padding | None:
    check_count("window", window)
    mask, bias = check_qkv(q, k, v, mask, bias)
    (padding,), rest = mask.take(*HONOURS)
    if any(isinstance(term, Causal) for term in rest.terms()):
        raise NotImplementedError(
            "mask: routing cannot honour Causal: a later token more similar to a centroid pushes "
            "an earlier one out of its cluster; use reformer, whose buckets depend on the past only"
        )
    refuse_rest("routing", rest, bias, HONOURS)
    check_floats(centroids=centroids)
    (K, H), shape = k.shape[-2:], centroids.shape
    if len(shape) != 3 or (shape[0], shape[2]) != (K, H) or 0 in shape:
        raise ValueError(
            f"centroids: expected [{K} key heads, clusters, width {H}], as `init` makes them, got "
            f"{list(shape)}"
        )
    return padding


def _choose(
    q, k, padding, centroids, window
) -> tuple[Int[Array, "b K C gw"], Int[Array, "b K C w"]]:
    """The query rows (position times group size, plus the head in its group) and the keys that each
    centroid takes; an index past the end for none."""
    *batch, T, N, _ = q.shape
    S, K = k.shape[-3:-1]
    centroids = lax.stop_gradient(centroids).astype(jnp.float32)

    def best(x, there, group):
        x = on_sphere(_buckets.selecting(_buckets.head_rows(x, K)))
        x = x.reshape(*x.shape[:2], x.shape[2] // group, group, x.shape[-1])
        near = jnp.einsum("bklgh,kch->bkcgl", x, centroids, precision="highest")
        near = jnp.where(there[:, None, None, None], near, -jnp.inf)
        value, at = lax.top_k(near, min(window, near.shape[-1]))
        of_group = jnp.arange(group, dtype=jnp.int32)[:, None]
        at = jnp.add(*aligned(at.astype(jnp.int32) * group, of_group))
        at = jnp.where(value > -jnp.inf, at, near.shape[-1] * group)
        return at.reshape(*at.shape[:3], at.shape[3] * at.shape[4])

    live, seen = _buckets.there(padding, batch, T, S)
    return best(q, live, N // K), best(k, seen, 1)


def _dense(q, k, padding, centroids, window):
    """The full matrix of weights [*B, N, T, S], and which pairs share a cluster."""
    *batch, T, N, _ = q.shape
    S = k.shape[-3]
    q = _buckets.where_finite(q, centroids)
    rows, columns = _choose(q, k, padding, centroids, window)
    member = lambda at, n: jnp.equal(*aligned(at[..., None], jnp.arange(n))).any(-2)  # [b, K, C, n]
    asks, there = member(rows, T * N // k.shape[-2]), member(columns, S)
    pairs = asks[..., :, None] & there[..., None, :]  # [b, K, C, Tg, S]
    heads = lambda x: jnp.moveaxis(_buckets.as_heads(x, (*batch, T, N, 0)), -3, -2)
    s = scores(on_sphere(q) * q.shape[-1] ** -0.5, on_sphere(k))
    w = sum(masked_softmax(s, heads(pairs[:, :, c])) for c in range(centroids.shape[1]))
    clusters = heads(asks.sum(2)[..., None]).astype(w.dtype)
    return w / jnp.maximum(clusters, 1), heads(pairs.any(2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing(Mechanism):
    """Attention within clusters about centroids (Roy et al. 2020), of `window` tokens each.

    The paper moves the centroids by online k-means: `updated_centroids`, which a training loop
    calls. The layer, and so `experiments`, does not: there they stay as they were drawn.
    """

    honours: ClassVar = HONOURS
    clusters: int = 16
    window: int = 64

    def __post_init__(self):
        check_count("clusters", self.clusters)
        check_count("window", self.window)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, centroids) -> Array:
        self.check_learned(q, k, v, centroids=centroids)
        options = {"centroids": centroids, "window": self.window}
        return routing_attention(q, k, v, mask=mask, bias=bias, **options)

    def reference(self, q, k, v, *, mask=FULL, bias=None, centroids):
        self.check_learned(q, k, v, centroids=centroids)
        padding = _checked(q, k, v, mask, bias, centroids, self.window)
        w, seen = _dense(q, k, padding, centroids, self.window)
        return apply_weights(w, wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None, centroids):
        self.check_learned(q, k, k, centroids=centroids)
        padding = _checked(q, k, k, mask, bias, centroids, self.window)
        return _dense(q, k, padding, centroids, self.window)[0]

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        x = jax.random.normal(key, (num_kv_heads, self.clusters, head_dim), jnp.float32)
        return {"centroids": x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)}

    def flops(self, T, S, N, K, H, D):
        w, u = min(self.window, T), min(self.window, S)
        clusters = _apart(self.clusters, self.window, T, S)
        near = 2 * clusters * H * (T * N + S * K)
        return near + 2 * _buckets.padded(clusters, AT_ONCE) * N * w * u * (H + D)

    @classmethod
    def examples(cls):
        return cls(clusters=4, window=6), cls(clusters=3, window=40)
