"""Sinkhorn attention against loops over blocks; planted permutations; the sorter's gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.masks import FULL, Causal, Padding
from attn.sparse import sinkhorn
from attn.sparse.sinkhorn import Sinkhorn, sinkhorn_attention


def draw(T, S, *, N=2, K=1, H=4, D=3, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(2, *x)) for x in ((T, N, H), (S, K, H), (S, K, D)))
    w = rng.normal(size=(K, H, H))
    return tuple(jnp.asarray(x, jnp.float32) for x in (q, k, v, w))


def attend(q, k, v, w, *, mask=FULL, **options):
    call = lambda q, k, v, w, mask: sinkhorn_attention(q, k, v, sorting=w, mask=mask, **options)
    return jax.jit(call)(q, k, v, w, mask)


def plan(q, k, w, blocks, iterations, temperature):
    """P of one head, in loops over the pairs of blocks [(queries, keys)] that there are."""
    rows = [a for a, _ in blocks]
    columns = [b for _, b in blocks]
    p = np.zeros((len(rows), len(columns)))
    for a, asks in enumerate(rows):
        for b, seen in enumerate(columns):
            if asks and seen:
                r = q[asks].mean(0) @ w @ k[seen].mean(0) / np.sqrt(q.shape[-1])
                p[a, b] = np.exp(r / temperature)
    for _ in range(iterations):
        for axis in (0, 1):
            total = p.sum(axis, keepdims=True)
            p = p / np.where(total == 0, 1, total)
    return p


def definition(q, k, v, w, *, block_size, asks, seen, iterations=8, temperature=0.75):
    """One softmax over the own block and the sorted one, query by query, in float64."""
    q, k, v, w = (np.asarray(x, np.float64) for x in (q, k, v, w))
    B, T, N, H = q.shape
    S, K = k.shape[1:3]
    out = np.zeros((B, T, N, v.shape[-1]))
    m = block_size
    for b in range(B):
        for n in range(N):
            g = n // (N // K)
            x, y, z = q[b, :, n], k[b, :, g], v[b, :, g]
            many = max(-(-T // m), -(-S // m))
            at = [range(a * m, (a + 1) * m) for a in range(many)]
            blocks = [
                ([i for i in r if i < T and asks[b, i]], [j for j in r if j < S and seen[b, j]])
                for r in at
            ]
            p = plan(x, y, w[g], blocks, iterations, temperature)
            for a, (own, near) in enumerate(blocks):
                keys, values, shares = list(y[near]), list(z[near]), [1.0] * len(near)
                for place in range(m):
                    there = [(p[a, u], u * m + place) for u in range(many)]
                    there = [(c, j) for c, j in there if j < S and seen[b, j]]
                    share = sum(c for c, _ in there)
                    if share > 0:
                        keys.append(sum(c * y[j] for c, j in there) / share)
                        values.append(sum(c * z[j] for c, j in there) / share)
                        shares.append(share)
                for i in own if keys else []:
                    e = np.array(shares) * np.exp(np.array(keys) @ x[i] / np.sqrt(H))
                    out[b, i, n] = e / e.sum() @ np.array(values)
    return out


@pytest.mark.parametrize(("T", "S"), [(13, 13), (6, 11), (11, 4)])
@pytest.mark.parametrize("iterations", [1, 8])
def test_equals_loops_over_blocks(T, S, iterations):
    q, k, v, w = draw(T, S)
    lengths = np.array([max(S - 6, 1), S])
    seen = np.arange(S) < lengths[:, None]
    asks = seen if T == S else np.ones((2, T), bool)
    options = {"block_size": 3, "iterations": iterations}
    out = attend(q, k, v, w, mask=Padding(jnp.asarray(lengths, jnp.int32)), **options)
    want = definition(q, k, v, w, asks=asks, seen=seen, **options)
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_planted_permutation_is_attention_to_that_block(replaced):
    """P moves block 2 to block 0 and so on: queries see their own block and exactly that one."""
    q, k, v, w = draw(12, 12)
    to = np.array([2, 0, 3, 1])
    permutation = jnp.asarray(np.eye(4)[to], jnp.float32)
    planted = jnp.broadcast_to(permutation, (2, 1, 2, 4, 4))
    unsorted = jnp.zeros((2, 1, 2), bool)
    replaced(sinkhorn._attend, sinkhorn, "sort_matrix", lambda *_: (planted, unsorted))
    out = attend(q, k, v, w, block_size=3)
    for b in range(4):
        own = np.r_[b * 3 : b * 3 + 3, to[b] * 3 : to[b] * 3 + 3]
        s = np.einsum("btnh,bsh->bnts", q[:, b * 3 : b * 3 + 3], k[:, own, 0]) / 2
        want = np.einsum("bnts,bsd->btnd", jax.nn.softmax(s), v[:, own, 0])
        np.testing.assert_allclose(out[:, b * 3 : b * 3 + 3], want, atol=1e-6)


def test_gradient_reaches_the_sorting_net():
    """LRA's einsum sums over all blocks, so that its sorter learns nothing."""
    q, k, v, w = draw(12, 12)
    loss = lambda w: (sinkhorn_attention(q, k, v, sorting=w, block_size=3) ** 2).sum()
    grad = jax.jit(jax.grad(loss))(w)
    assert np.abs(grad).max() > 1e-3
    step = 1e-2 * grad / jnp.linalg.norm(grad)
    slope = (jax.jit(loss)(w + step) - jax.jit(loss)(w - step)) / 2e-2
    np.testing.assert_allclose(slope, jnp.linalg.norm(grad), rtol=0.02)


def test_iterations_make_the_matrix_doubly_stochastic():
    q, k, _, w = draw(12, 12)
    there = jnp.ones((2, 12), bool)
    p, _ = sinkhorn.sort_matrix(q, k, there, there, 3 * w, 3, 50, 0.75)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(p.sum(-2), 1, atol=1e-3)


def test_low_temperature_sorts_whole_blocks():
    """A sorter that likes k's block in q: near a permutation once it is cold."""
    rng = np.random.default_rng(0)
    marks = 3 * np.eye(4)
    to = np.array([2, 0, 3, 1])
    k = np.repeat(marks, 3, 0)[None, :, None] + 0.01 * rng.normal(size=(1, 12, 1, 4))
    q = np.repeat(marks[to], 3, 0)[None, :, None]
    there = jnp.ones((1, 12), bool)
    q, k = jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32)
    p, _ = sinkhorn.sort_matrix(q, k, there, there, jnp.eye(4)[None], 3, 8, 0.1)
    np.testing.assert_allclose(p[0, 0, 0], np.eye(4)[to], atol=1e-3)


def test_padding_moves_nothing():
    q, k, v, w = draw(10, 10)
    out = attend(q, k, v, w, block_size=4)
    q, k, v = (jnp.concatenate([x, 50 * y], 1) for x, y in zip((q, k, v), draw(10, 10, seed=1)))
    mask = Padding(jnp.array([10, 10], jnp.int32))
    again = attend(q, k, v, w, block_size=4, mask=mask)
    np.testing.assert_allclose(again[:, :10], out, atol=1e-6)


def test_causal_is_refused_with_the_reason():
    q, k, v, w = draw(6, 6)
    with pytest.raises(NotImplementedError, match=r"Causal.*later ones too.*reformer"):
        sinkhorn_attention(q, k, v, sorting=w, mask=Causal())


@pytest.mark.parametrize("name", ["block_size", "iterations", "temperature"])
@pytest.mark.parametrize("value", [0, -1, "2", True, float("nan")])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Sinkhorn(**{name: value})


def test_bad_sorting_is_refused():
    q, k, v, w = draw(5, 5)
    for wrong in (w[0], w[..., :3], jnp.concatenate([w, w])):
        with pytest.raises(ValueError, match="sorting: expected"):
            sinkhorn_attention(q, k, v, sorting=wrong)


@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (3, 0), (1, 1), (2, 3)])
def test_tiny_lengths_and_blocks_larger_than_them(T, S):
    q, k, v, w = draw(T, S)
    out = attend(q, k, v, w, block_size=50)
    asks, seen = np.ones((2, T), bool), np.ones((2, S), bool)
    want = definition(q, k, v, w, block_size=50, asks=asks, seen=seen)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e20, 3e38])
def test_scores_of_blocks_that_overflow_reach_no_gradient_of_other_rows(size):
    q, k, v, w = draw(9, 9)
    loss = lambda *arrays: (attend(*arrays, block_size=3)[0] ** 2).sum()
    grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    large = [x.at[1].set(size * jnp.sign(x[1])) for x in (q, k)]
    dirty, clean = grad(*large, v, w), grad(q, k, v, w)
    for x, y in zip(dirty, clean):
        np.testing.assert_array_equal(x, y)
    assert np.isnan(attend(*large, v, w, block_size=3)[1]).any()
