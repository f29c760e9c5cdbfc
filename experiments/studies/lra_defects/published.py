"""What the published Long Range Arena code computes, written anew: one sequence, one head.

From google-research/long-range-arena, lra_benchmarks/models (commit a2e5057): only the part of each
layer that differs from its paper. q, k, v are [T, H]; T is a multiple of the block.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def softmax_of(q, k, v, *, scale):
    return jax.nn.softmax(scale * q @ k.T, axis=-1) @ v


def local(q, k, v, *, block: int) -> Float[Array, "T H"]:
    """Cut as [block, T / block] and not [T / block, block]: who meets stands T / block apart."""
    cut = lambda x: x.reshape(block, -1, x.shape[-1])
    attend = lambda q, k, v: softmax_of(q, k, v, scale=q.shape[-1] ** -0.5)
    return jax.vmap(attend, in_axes=1, out_axes=1)(*map(cut, (q, k, v))).reshape(q.shape)


def sinkhorn(q, k, v, sorting: Float[Array, "H blocks"], *, block: int) -> Float[Array, "T H"]:
    """Blocks cut as in `local`; sorted by an einsum that sums over blocks and, apart from them,
    over the sort matrix, whose rows sum to 1: each sorted block is the sum of all blocks."""
    cut = lambda x: x.reshape(block, -1, x.shape[-1])
    q, k, v = map(cut, (q, k, v))
    matrix = jax.nn.softmax(k.sum(0) @ sorting, axis=-1)  # [blocks, blocks]
    moved = lambda x: jnp.einsum("skh,nl->snh", x, matrix)

    def attend(q, k, v, sorted_k, sorted_v):
        scale = q.shape[-1] ** -0.5
        return softmax_of(q, k, v, scale=scale) + softmax_of(q, sorted_k, sorted_v, scale=scale)

    out = jax.vmap(attend, in_axes=1, out_axes=1)(q, k, v, moved(k), moved(v))
    return out.reshape(-1, v.shape[-1])


def reformer_buckets(q: Float[Array, "T H"], buckets: int) -> Int[Array, "T"]:
    """Hashed with key 0, whatever the layer, the head and the step."""
    rotations = jax.random.normal(jax.random.key(0), (q.shape[-1], buckets // 2))
    x = q @ rotations
    return jnp.argmax(jnp.concatenate([x, -x], -1), -1)


def reformer(q, v, *, buckets: int) -> Float[Array, "T H"]:
    """One round: sorted by bucket, cut in as many chunks as there are buckets, each chunk with the
    one before it (before the first, the last); logits times sqrt(H); no padding mask."""
    T, H = q.shape
    order = jnp.lexsort((jnp.arange(T), reformer_buckets(q, buckets)))
    qs, vs = (x[order].reshape(buckets, -1, H) for x in (q, v))
    back = lambda x: jnp.concatenate([x, jnp.roll(x, 1, axis=0)], axis=1)
    attend = lambda q, k, v: softmax_of(q, k, v, scale=H**0.5)
    out = jax.vmap(attend)(qs, back(qs), back(vs)).reshape(T, H)
    return jnp.zeros_like(out).at[order].set(out)


def performer(q, k, v, projection: Float[Array, "M H"]) -> Float[Array, "T H"]:
    """Causal, with keys held against the largest of the whole sequence, and 1e-6 added after."""
    x = lambda x: x * x.shape[-1] ** -0.25
    half = lambda x: (x**2).sum(-1, keepdims=True) / 2
    pq, pk = x(q) @ projection.T, x(k) @ projection.T
    fq = jnp.exp(pq - half(x(q)) - pq.max(-1, keepdims=True)) + 1e-6
    fk = jnp.exp(pk - half(x(k)) - pk.max()) + 1e-6
    sums = lambda x: jnp.cumsum(x, 0)
    top = jnp.einsum("tm,tmd->td", fq, sums(fk[:, :, None] * v[:, None, :]))
    return top / (fq * sums(fk)).sum(-1, keepdims=True)
