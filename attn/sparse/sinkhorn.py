"""Sparse Sinkhorn attention (Tay et al. 2020, arXiv:2002.11296): blocks sorted by a learned map."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attn._arrays import check_floats
from attn._axes import conjunction
from attn._core import apply_weights, isolate, masked_softmax
from attn._explicit import auto_inside
from attn._inputs import check_qkv, refuse_rest
from attn._settings import check_count, is_number
from attn._tokens import clean, filled, in_blocks, no_output
from attn._wide import wide
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.sparse import _buckets

HONOURS = (Padding,)


@auto_inside
def sinkhorn_attention(
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B S K H"],
    v: Float[Array, "*B S K D"],
    *,
    sorting: Float[Array, "K H H"],
    block_size: int = 64,
    iterations: int = 8,
    temperature: float = 0.75,
    mask: Mask = FULL,
    bias=None,
) -> Float[Array, "*B T N D"]:
    """One softmax over a query block's own block of keys and a mixture of all blocks, sorted to it.

    R = mean(q block) W mean(k block)^T / (sqrt(H) temperature), W the `sorting` of a key head, for
    all pairs of blocks; P is exp(R) with its columns, then its rows, normalised to sum to 1,
    `iterations` times (the paper: rows, then columns; rows last make averages). The block sorted to
    a query block is P k, P v, place by place: a permutation P moves whole blocks. (The scores are
    ours: the authors' code, that of Long Range Arena, maps the sum of each block of keys to one
    score for each place, and uses no query; it adds up two softmaxes, of the own block and of the
    sorted one.) Where some of a place's tokens are hidden, it is the average of the others, and its
    weight is multiplied by their share of P.

    O(T block_size + (T / block_size)^2 (H + block_size (H + D))) time. No Gumbel noise. Honours
    `Padding`: hidden tokens and blocks of them alone take no part; if T = S and `Padding` does not
    say which queries exist, nor do queries at hidden keys' positions, whose output is 0. P depends
    on all tokens, so `Causal` and the rest raise NotImplementedError. ValueError for a `sorting` of
    another shape and for settings that are not positive.
    """
    padding = _checked(q, k, v, mask, bias, sorting, block_size, iterations, temperature)
    (*batch, T, _, _), S = q.shape, v.shape[-3]
    if 0 in (T, S, *batch):
        return no_output(q, v)
    there = _buckets.there(padding, batch, T, S)
    settings = min(block_size, max(T, S)), iterations, float(temperature)
    return _attend(*settings, q, k, v, *there, sorting)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # for calls outside of jit
def _attend(m: int, iterations, temperature, q, k, v, live, seen, sorting):
    """For blocks of m and the tokens that exist, [b, T] and [b, S]."""
    (*batch, T, N, _), (K, D) = q.shape, v.shape[-2:]
    b, dtype = len(live), jnp.result_type(q)
    (q, q_lost), (k, k_lost), (v, v_lost) = (
        _clean(x, there, batch) for x, there in ((q, live), (k, seen), (v, seen))
    )
    matrix, over = sort_matrix(q, k, live, seen, sorting, m, iterations, temperature)
    Q = matrix.shape[-2]
    cut = lambda x, axis: in_blocks(x, m, axis)
    x = cut(q * q.shape[-1] ** -0.5, 1).reshape(b, Q, m, K, N // K, -1)
    x = jnp.moveaxis(x, (3, 4), (1, 2))  # [b, K, g, Q, m, H]
    y, z = (jnp.moveaxis(cut(a, 1), 3, 1) for a in (k, v))  # [b, K, U, m, H]
    there = cut(seen, 1)  # [b, U, m]
    # the sorted block: the mean of the tokens seen at each place, of which P holds this share
    share = jnp.einsum("bkgqu,bum->bkgqm", matrix, there.astype(matrix.dtype))
    total = jnp.where(share > 0, share, 1)[..., None]
    moved = [isolate(jnp.einsum("bkgqu,bkumh->bkgqmh", matrix, a) / total) for a in (y, z)]
    moved, poison = zip(*moved)
    over = over | jnp.isnan(sum(poison)).any((-2, -1))
    own = lambda a, like: jnp.broadcast_to(filled(a, Q, 2)[:, :, None], like.shape)
    pair = lambda a, s: jnp.concatenate([own(a, s), s], axis=-2)
    one = own(there[:, None], share).astype(share.dtype)
    shares = jnp.concatenate([one, share], axis=-1)[..., None, :]  # [b, K, g, Q, 1, 2 m]
    asks = cut(live, 1)[:, None, None, :, :, None]
    out, _ = _buckets.small_softmax(x, *map(pair, (y, z), moved), asks & (shares > 0), shares)
    out = jnp.moveaxis(out, (1, 2), (3, 4)).reshape(b, Q * m, N, D)[:, :T]
    # every block of a head is sorted by scores of all, and is a mixture of all
    lost = q_lost | jnp.repeat(k_lost | v_lost, N // K, axis=-1) | over.reshape(b, N)
    nan = jnp.where(lost, jnp.nan, 0).astype(out.dtype)[:, None, :, None]
    live = live & seen.any(-1, keepdims=True)
    out = jnp.where(live[..., None, None], out + nan, 0)
    return out.reshape(*batch, T, N, D).astype(dtype)


def sort_matrix(
    q: Float[Array, "b T N H"],
    k: Float[Array, "b S K H"],
    live: Bool[Array, "b T"],
    seen: Bool[Array, "b S"],
    sorting: Float[Array, "K H H"],
    block_size: int,
    iterations: int,
    temperature: float,
) -> tuple[Float[Array, "b K g Q U"], Bool[Array, "b K g"]]:
    """The matrix P, the share of each block of keys sorted to each block of queries, and which
    heads have a score that overflows: their P is that of scores of 0. Rows sum to 1, or are 0 for a
    block without queries; columns of blocks without keys are 0. Hidden tokens must be 0."""
    (b, _, N, H), K = q.shape, k.shape[2]

    def pooled(x, there):
        count = in_blocks(there, block_size, 1).sum(2)
        total = in_blocks(x, block_size, 1).sum(2)
        mean = total / jnp.maximum(count, 1).astype(x.dtype)[..., None, None]
        return *isolate(mean), count > 0

    (x, x_poison, rows), (y, y_poison, columns) = pooled(q, live), pooled(k, seen)
    x = x.reshape(b, x.shape[1], K, N // K, H)
    r = jnp.einsum("bqkgh,khe,buke->bkgqu", x, sorting.astype(q.dtype), y) / float(temperature)
    lost = ~jnp.isfinite(r).all((-2, -1))
    lost = lost | jnp.isnan(x_poison).any(1).reshape(b, K, N // K)
    lost = lost | jnp.isnan(y_poison).any(1)[..., None]
    r = jnp.where(lost[..., None, None], 0, r)
    both = (rows[:, :, None] & columns[:, None, :])[:, None, None]

    def normalised(r, axis):
        top = jnp.where(both, r, -jnp.inf).max(axis, keepdims=True, initial=-jnp.inf)
        top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
        total = jnp.where(both, jnp.exp(jnp.where(both, r - top, 0)), 0).sum(axis, keepdims=True)
        return r - top - jnp.log(jnp.where(total == 0, 1, total))

    step = lambda r, _: (normalised(normalised(r, -2), -1), None)
    r, _ = jax.lax.scan(step, r * H**-0.5, None, length=iterations)
    return jnp.where(both, jnp.exp(jnp.where(both, r, 0)), 0), lost


def _clean(x, there, batch):
    """x as [b, L, N, H], 0 where hidden or not finite, and which heads have a non-finite token."""
    x, poison = clean(x.reshape(len(there), *x.shape[len(batch) :]), there)
    return x, jnp.isnan(poison).any(1)


def _check_settings(block_size, iterations, temperature):
    check_count("block_size", block_size)
    check_count("iterations", iterations)
    if not is_number(temperature) or not 0 < temperature < np.inf:
        raise ValueError(f"temperature: expected a number above 0, got {temperature!r}")


def _checked(q, k, v, mask, bias, sorting, *settings) -> Padding | None:
    _check_settings(*settings)
    mask, bias = check_qkv(q, k, v, mask, bias)
    (padding,), rest = mask.take(*HONOURS)
    if any(isinstance(term, Causal) for term in rest.terms()):
        raise NotImplementedError(
            "mask: sinkhorn cannot honour Causal: where a block is sorted to depends on every "
            "other block, later ones too; use reformer or a fixed pattern"
        )
    refuse_rest("sinkhorn", rest, bias, HONOURS)
    check_floats(sorting=sorting)
    K, H = k.shape[-2:]
    if sorting.shape != (K, H, H):
        raise ValueError(f"sorting: expected {[K, H, H]}, got {list(sorting.shape)}")
    return padding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinkhorn(Mechanism):
    """Each block sees itself and a block of keys sorted to it by a learned net (Tay et al. 2020,
    but scored by its queries).

    Without the paper's Gumbel noise: a call is deterministic.
    """

    honours: ClassVar = HONOURS
    block_size: int = 64
    iterations: int = 8
    temperature: float = 0.75

    def __post_init__(self):
        _check_settings(self.block_size, self.iterations, self.temperature)

    @property
    def linear_memory(self):
        # the sort matrix has (T / block_size)^2 entries
        return False

    def __call__(self, q, k, v, *, mask=FULL, bias=None, sorting) -> Array:
        options = dataclasses.asdict(self)
        return sinkhorn_attention(q, k, v, mask=mask, bias=bias, sorting=sorting, **options)

    def reference(self, q, k, v, *, mask=FULL, bias=None, sorting):
        check_qkv(q, k, v, mask, bias)
        w, seen = self._dense(q, k, mask, bias, sorting)
        return apply_weights(w, wide(v), seen)

    def weights(self, q, k, *, mask=FULL, bias=None, sorting):
        return self._dense(q, k, mask, bias, sorting)[0]

    def _dense(self, q, k, mask, bias, sorting):
        """The weights [*B, N, T, S] of tokens, and which pairs are visible."""
        settings = self.block_size, self.iterations, self.temperature
        padding = _checked(q, k, k, mask, bias, sorting, *settings)
        (*batch, T, N, H), (S, K) = q.shape, k.shape[-3:-1]
        live, seen = _buckets.there(padding, batch, T, S)
        (q, q_lost), (k, k_lost) = _clean(q, live, batch), _clean(k, seen, batch)
        m, i, j = min(self.block_size, max(T, S, 1)), jnp.arange(T)[:, None], jnp.arange(S)[None]
        matrix, over = sort_matrix(q, k, live, seen, sorting, m, *settings[1:])
        at_place = conjunction(j % m == jnp.arange(m)[:, None], seen[:, None, None, None, None])
        moved = matrix[..., i[:, 0] // m, :][..., None, j[0] // m]
        moved = jnp.where(at_place, moved, 0)  # [b, K, g, T, m, S]
        share = moved.sum(-1)
        moved = moved / jnp.where(share > 0, share, 1)[..., None]
        near = conjunction(i // m == j // m, seen[:, None, None, None])
        near = jnp.broadcast_to(near, (*share.shape[:-1], S))
        q = jnp.moveaxis(q.reshape(len(q), T, K, N // K, H), 1, 3) * H**-0.5
        s = jnp.einsum("bkgth,bskh->bkgts", q, k)
        sorted_s = jnp.einsum("bkgts,bkgtms->bkgtm", s, moved)
        sorted_s = sorted_s + jnp.log(jnp.where(share > 0, share, 1))
        both = jnp.concatenate([near, share > 0], -1) & live[:, None, None, :, None]
        w = masked_softmax(jnp.concatenate([s, sorted_s], -1), both)
        w = w[..., :S] + jnp.einsum("bkgtm,bkgtms->bkgts", w[..., S:], moved)
        pairs = live[:, None, :, None] & seen[:, None, None]
        lost = q_lost | jnp.repeat(k_lost, N // K, axis=-1) | over.reshape(len(live), N)
        w = jnp.where(pairs & lost[..., None, None], jnp.nan, w.reshape(len(live), N, T, S))
        return w.reshape(*batch, N, T, S), pairs.reshape(*batch, 1, T, S)

    def init(self, key, *, num_heads, num_kv_heads, head_dim, value_dim, max_length):
        shape = (num_kv_heads, head_dim, head_dim)
        return {"sorting": jax.random.normal(key, shape, jnp.float32) * head_dim**-0.5}

    def flops(self, T, S, N, K, H, D):
        m = min(self.block_size, max(T, S, 1))
        Q, U = -(-T // m), -(-S // m)
        mapped = min(N * Q, K * U) * H * H  # by W: the fewer, blocks of queries or of keys
        blocks = Q * U * (H + m * (H + D + 1)) + 2 * Q * m * m * (H + D)
        return 2 * (mapped + N * blocks)

    @classmethod
    def examples(cls):
        return cls(block_size=4), cls(block_size=3, iterations=1, temperature=2.0)
