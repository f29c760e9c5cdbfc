"""The linearized engine where nothing depends on order: two matrix products, chunk by chunk.

    S = sum_j phi(k_j) v_j^T,   z = sum_j phi(k_j),   out_i = phi(q_i) S / phi(q_i) z

A chunk's features stay in the processor's cache and are never written out whole; the backward pass
recomputes them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from attn._core import isolate
from attn._tokens import even_blocks, to_heads
from attn._turns import loops_are_slow
from attn._varying import vary
from attn._wide import finite
from attn.linearized._terms import divide, divisor, isolated_terms, low

CHUNK = 1024
# float32 numbers of the features of a chunk. On two CPU cores 8 rows of 1,024 tokens, taken whole,
# need 4 to 5 times the memory; from half to double the time is within a sixth
BUDGET = 2**19
LONGEST = 16384  # where loops are slow


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """The sums over each of C chunks of keys, relative to exp(top) where keys have weights."""

    kv: Float[Array, "B C K M D"]
    k: Float[Array, "B C K M"]
    top: Float[Array, "B C K"] | None
    poison: Float[Array, "B C K"]


def attend(
    form,
    features: int,
    learned: dict[str, Array],
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K D"],
    seen: Bool[Array, "B S"],
) -> Float[Array, "B T N D"]:
    """The output where every query sees every key that is not hidden; hidden ones are finite."""
    B, T, N, _ = q.shape
    S, K, D = v.shape[1:]
    gather, read = functools.partial(_gather, form, N), functools.partial(_read, form, K)
    sums = _by_chunks(gather, chunk_of(S, B * K * features, D), learned, (k, v), seen)
    sums, sees = _total(sums), jnp.broadcast_to(seen.any(1, keepdims=True), (B, T))
    return _by_chunks(read, chunk_of(T, B * N * features, D), (learned, sums), (q,), sees)


def chunk_of(length: int, features: int, D: int) -> int:
    """How many tokens to take at once, each of which has so many features in all its heads; a
    chunk's sums have D for each of them."""
    most = LONGEST if loops_are_slow() else min(CHUNK, max(4 * D, BUDGET // max(1, features)))
    return even_blocks(length, most)[1]


def _gather(form, N: int, learned, keys, seen) -> Sums:
    """The sums of one chunk of keys."""
    k, v = keys
    q = jnp.zeros((*k.shape[:2], N, k.shape[-1]), k.dtype)
    terms, _, (poison,) = isolated_terms(form, learned, q, k, {}, 2)
    v, v_poison = isolate(v)
    poison = poison + v_poison  # [B, C, K]
    shown = seen[..., None] & (poison == 0)
    fk, top = jnp.where(shown[..., None], terms.k, 0), None
    if terms.log_weight is not None:
        weight = jnp.where(shown, terms.log_weight, low(fk.dtype))
        top = lax.stop_gradient(weight.max(1, keepdims=True))
        fk = fk * jnp.exp(weight - top)[..., None]
    fk, v = jnp.swapaxes(fk, 1, 2), jnp.swapaxes(v, 1, 2)
    poison = jnp.where(seen[..., None], poison, 0).sum(1)
    return Sums((fk.mT @ v)[:, None], fk.sum(2)[:, None], top, poison[:, None])


def _total(sums: Sums) -> Sums:
    """The sums over all chunks, as one chunk."""
    kv, k, top = sums.kv, sums.k, sums.top
    if top is not None:
        top = top.max(1, keepdims=True)
        share = jnp.exp(sums.top - top)[..., None]
        kv, k = kv * share[..., None], k * share
    whole = lambda x: x.sum(1, keepdims=True)
    return Sums(whole(kv), whole(k), top, whole(sums.poison))


def _read(form, K: int, learned_and_sums, queries, sees) -> Float[Array, "B C N D"]:
    """The output of one chunk of queries, of which `sees` [B, C] says which see any key."""
    (learned, sums), (q,) = learned_and_sums, queries
    B, C, N, H = q.shape
    terms, q_poison, _ = isolated_terms(form, learned, q, jnp.zeros((B, C, K, H), q.dtype), {}, 2)
    fq = jnp.swapaxes(terms.q, 1, 2).reshape(B, K, N // K * C, -1)
    out = _met(fq, sums.kv[:, 0], sums.k[:, 0] if form.normalised else None, form.floor)
    met = to_heads(sums.poison, N, -1) + jnp.where(sees[..., None], q_poison, 0)
    return jnp.swapaxes(out.reshape(B, N, C, -1), 1, 2) + lax.stop_gradient(met)[..., None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _met(q, kv, k, floor: float):
    """q kv, divided by q k if there is a k."""
    out = q @ kv
    return out if k is None else divide(out, (q @ k[..., None])[..., 0], floor)


@_met.defjvp
def _met_jvp(floor, primals, tangents):
    """0 in a row that overflows: if it is unused, 0 * inf would reach the sums it read."""
    (q, kv, k), (dq, dkv, dk) = primals, tangents
    out = _met(q, kv, k, floor)
    fine = jnp.isfinite(out).all(-1, keepdims=True)
    d_out = dq @ finite(kv) + q @ dkv
    if k is not None:  # as that of `divide`
        used, own = divisor(q @ k[..., None], floor)
        dd = jnp.where(own, dq @ finite(k)[..., None] + q @ dk[..., None], 0)
        d_out = (d_out - jnp.where(fine, out, 0) * dd) / jnp.where(fine, used, 1)
    return out, jnp.where(fine, d_out, 0)


def _by_chunks(f, chunk: int, shared, tokens, shown):
    """f(shared, tokens, shown) of each chunk, concatenated on axis 1."""
    length = shown.shape[1]
    whole = -(-length // chunk) * chunk
    pad = lambda x: jnp.pad(x, [(0, 0), (0, whole - length)] + [(0, 0)] * (x.ndim - 2))
    # under shard_map what is carried must vary as what is written to it
    shared, tokens = vary((shared, tokens), shown)
    out = _chunks(f, chunk, shared, *jax.tree.map(pad, (tokens, shown)))
    return jax.tree.map(lambda x: x[:, :length], out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunks(f, chunk, shared, tokens, shown):
    return _chunks_forward(f, chunk, shared, tokens, shown)[0]


# does not call `_chunks`: forward over reverse differentiates this code
def _chunks_forward(f, chunk, shared, tokens, shown):
    """Slices are cut and written in place: transposing the whole would cost more than the sums."""
    count = shown.shape[1] // chunk
    many = lambda x: jnp.zeros((x.shape[0], x.shape[1] * count, *x.shape[2:]), x.dtype)
    # never computed: only the shapes of it are used
    start = jax.tree.map(many, f(shared, *_cut((tokens, shown), 0, chunk)))
    start = vary(start, shared, tokens)
    body = lambda out, c: (_put(out, f(shared, *_cut((tokens, shown), c, chunk)), c), None)
    return lax.scan(body, start, jnp.arange(count))[0], (shared, tokens, shown)


def _chunks_backward(f, chunk, saved, d_out):
    shared, tokens, shown = saved
    count = shown.shape[1] // chunk

    def body(carry, c):
        d_shared, d_tokens = carry
        piece, these = _cut((tokens, shown), c, chunk)
        _, pull = jax.vjp(lambda shared, piece: f(shared, piece, these), shared, piece)
        d_one = jax.tree.map(lambda x: _slice(x, c, x.shape[1] // count), d_out)
        more, d_piece = pull(d_one)
        return (jax.tree.map(jnp.add, d_shared, more), _put(d_tokens, d_piece, c)), None

    start = jax.tree.map(jnp.zeros_like, (shared, tokens))
    d_shared, d_tokens = lax.scan(body, start, jnp.arange(count))[0]
    return d_shared, d_tokens, None


_chunks.defvjp(_chunks_forward, _chunks_backward)


def _slice(x, c, size):
    return lax.dynamic_slice_in_dim(x, c * size, size, 1)


def _cut(tree, c, size):
    """Chunk c of every array."""
    return jax.tree.map(lambda x: _slice(x, c, size), tree)


def _put(tree, pieces, c):
    """The tree with `pieces` as its chunk c."""
    put = lambda x, y: lax.dynamic_update_slice_in_dim(x, y, c * y.shape[1], 1)
    return jax.tree.map(put, tree, pieces)
