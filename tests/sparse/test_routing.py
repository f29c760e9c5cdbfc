"""Routing attention against loops over clusters; its online k-means; what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.masks import FULL, Causal, Padding
from attn.sparse.routing import Routing, on_sphere, routing_attention, updated_centroids


def draw(T, S, *, N=2, K=1, H=4, D=3, clusters=3, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(2, *x)) for x in ((T, N, H), (S, K, H), (S, K, D)))
    c = rng.normal(size=(K, clusters, H))
    c /= np.linalg.norm(c, axis=-1, keepdims=True)
    return tuple(jnp.asarray(x, jnp.float32) for x in (q, k, v, c))


def attend(q, k, v, c, *, window, mask=FULL):
    call = lambda q, k, v, c, mask: routing_attention(
        q, k, v, centroids=c, window=window, mask=mask
    )
    return jax.jit(call)(q, k, v, c, mask)


def normed(x):
    x = np.asarray(x, np.float64)
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def taken(x, centroid, window, there):
    """The most similar tokens of those that are there, the first of equal ones."""
    some = [i for i in range(len(x)) if there[i]]
    return sorted(some, key=lambda i: (-float(x[i] @ centroid), i))[:window]


def definition(q, k, v, c, *, window, asks, seen):
    """Cluster by cluster, query by query; the mean over the clusters that took it."""
    q, k, v, c = normed(q), normed(k), np.asarray(v, np.float64), np.asarray(c, np.float64)
    B, T, N, H = q.shape
    K = k.shape[2]
    out = np.zeros((B, T, N, v.shape[-1]))
    for b in range(B):
        for n in range(N):
            g = n // (N // K)
            found = [[] for _ in range(T)]
            for centroid in c[g]:
                keys = taken(k[b, :, g], centroid, window, seen[b])
                for i in taken(q[b, :, n], centroid, window, asks[b]):
                    w = np.exp(k[b, keys, g] @ q[b, i, n] / np.sqrt(H))
                    found[i].append(w / w.sum() @ v[b, keys, g] if keys else np.zeros(v.shape[-1]))
            for i, several in enumerate(found):
                out[b, i, n] = np.mean(several, 0) if several else 0
    return out


@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize(("T", "S"), [(13, 13), (6, 11)])
def test_equals_loops_over_clusters(T, S, window):
    q, k, v, c = draw(T, S)
    lengths = np.array([S - 4, S])
    seen = np.arange(S) < lengths[:, None]
    asks = seen if T == S else np.ones((2, T), bool)
    out = attend(q, k, v, c, window=window, mask=Padding(jnp.asarray(lengths, jnp.int32)))
    want = definition(q, k, v, c, window=window, asks=asks, seen=seen)
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_padding_moves_nothing():
    """Twice as much padding, with other tokens in it, and real outputs stay."""
    q, k, v, c = draw(9, 9)
    out = attend(q, k, v, c, window=4)
    longer = draw(9, 9, seed=1)
    q, k, v = (jnp.concatenate([x, 50 * y], 1) for x, y in zip((q, k, v), longer))
    again = attend(q, k, v, c, window=4, mask=Padding(jnp.array([9, 9], jnp.int32)))
    np.testing.assert_allclose(again[:, :9], out, atol=1e-6)
    assert (np.asarray(again[:, 9:]) == 0).all()


def test_padding_of_queries_says_which_queries_there_are():
    """Cross attention of equal lengths: hidden keys say nothing of the queries there."""
    q, k, v, c = draw(7, 7)
    seen = np.arange(7) < np.array([[3], [7]])
    there = jnp.ones((2, 7), bool)
    out = attend(q, k, v, c, window=7, mask=Padding(keys=jnp.asarray(seen), queries=there))
    want = definition(q, k, v, c, window=7, asks=np.ones((2, 7), bool), seen=seen)
    np.testing.assert_allclose(out, want, atol=1e-5)
    assert (np.abs(np.asarray(out)).max(-1) > 0).all()


def test_one_cluster_of_all_tokens_is_softmax_of_normed_tokens():
    q, k, v, c = draw(8, 8, clusters=1)
    s = jnp.einsum("btnh,bsh->bnts", on_sphere(q), on_sphere(k)[:, :, 0]) / 2
    want = jnp.einsum("bnts,bsd->btnd", jax.nn.softmax(s), v[:, :, 0])
    np.testing.assert_allclose(attend(q, k, v, c, window=8), want, atol=1e-6)


def test_a_cluster_keeps_the_most_similar_keys():
    """The paper's reason for clusters: recall of each query's best key beats chance by far."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16))
    x = centres[np.arange(64) % 4] + 0.3 * rng.normal(size=(64, 16))
    x = jnp.asarray(x, jnp.float32)[None, :, None]
    c = jnp.asarray(centres / np.linalg.norm(centres, axis=-1, keepdims=True), jnp.float32)[None]
    m = Routing(clusters=4, window=16)
    w = np.asarray(jax.jit(lambda x, c: m.weights(x, x, centroids=c))(x, c))[0, 0]
    near = normed(x)[0, :, 0] @ normed(x)[0, :, 0].T - 1e3 * np.eye(64)
    assert (w > 0).mean() < 0.3
    assert (w[range(64), near.argmax(-1)] > 0).mean() > 0.95


def test_updated_centroids_are_the_moving_average_of_their_tokens():
    q, k, _, c = draw(9, 7)
    seen = np.arange(7) < np.array([[3], [7]])
    step = jax.jit(lambda c, q, k, mask: updated_centroids(c, q, k, mask=mask, decay=0.9))
    got = step(c, q, k, Padding(keys=jnp.asarray(seen)))
    x, y = normed(q), normed(k)
    tokens = np.concatenate([x.reshape(-1, 4), y[seen][:, 0]])
    near = (tokens @ np.asarray(c[0], np.float64).T).argmax(-1)
    for n in range(3):
        want = 0.9 * np.asarray(c[0, n], np.float64)
        own = tokens[near == n]
        want = want + 0.1 * own.mean(0) if len(own) else want
        np.testing.assert_allclose(got[0, n], want / np.linalg.norm(want), atol=1e-6)


def test_updated_centroids_find_clusters_and_keep_idle_ones():
    """Steps of online k-means turn towards the tokens' centres; one that is nearest to none stays;
    NaN is left out and no gradient comes back."""
    rng = np.random.default_rng(1)
    centres = np.eye(8)[:2] * 8 - 1
    x = centres[np.arange(40) % 2] + 0.1 * rng.normal(size=(40, 8))
    x = jnp.asarray(x, jnp.float32)[None, :, None]
    idle = -np.ones(8) / np.sqrt(8) + 0.0
    c = jnp.asarray(np.stack([np.eye(8)[0] + 0.6 * np.eye(8)[3], np.eye(8)[1], idle]))[None]
    c = c.astype(jnp.float32) / jnp.linalg.norm(c, axis=-1, keepdims=True)
    step = jax.jit(lambda c, x: updated_centroids(c, x, x, decay=0.5))
    new = c
    for _ in range(30):
        new = step(new, x.at[0, 0].set(jnp.nan))
    want = normed(centres) / np.sqrt(8)
    np.testing.assert_allclose(new[0, :2], want, atol=0.02)
    np.testing.assert_allclose(new[0, 2], c[0, 2], atol=1e-6)
    grad = jax.jit(jax.grad(lambda c, x: updated_centroids(c, x, x).sum(), argnums=(0, 1)))(c, x)
    assert all((np.asarray(g) == 0).all() for g in grad)
    for decay in (-0.1, 1.1, "0.9"):
        with pytest.raises(ValueError, match="decay"):
            updated_centroids(c, x, x, decay=decay)


@pytest.mark.slow
def test_updated_centroids_keep_to_float32_whatever_the_tokens_are():
    q, k, _, c = draw(9, 7)
    for x64, dtype in ((False, jnp.bfloat16), (True, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
            got = updated_centroids(c, q.astype(dtype), k.astype(dtype), decay=np.float64(0.9))
        assert got.dtype == jnp.float32


def test_causal_is_refused_with_the_reason():
    """Top-w clusters leak: a later token takes an earlier one's place."""
    q, k, v, c = draw(6, 6)
    with pytest.raises(NotImplementedError, match=r"Causal.*pushes an earlier one out.*reformer"):
        routing_attention(q, k, v, centroids=c, mask=Causal())
    before = attend(q, k, v, c, window=2)
    after = attend(q, k.at[:, 5].set(c[:, 0] * 9), v, c, window=2)
    assert np.abs(before[:, :5] - after[:, :5]).max() > 0.01


@pytest.mark.parametrize("name", ["clusters", "window"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        Routing(**{name: value})


def test_bad_centroids_are_refused():
    q, k, v, c = draw(5, 5)
    for wrong in (c[0], c[:, :0], c[..., :3], jnp.concatenate([c, c])):
        with pytest.raises(ValueError, match="centroids: expected"):
            routing_attention(q, k, v, centroids=wrong)
    with pytest.raises(ValueError, match="window"):
        routing_attention(q, k, v, centroids=c, window=0)


@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_tiny_lengths_and_more_clusters_than_tokens(T, S):
    q, k, v, c = draw(T, S, clusters=7)
    out = attend(q, k, v, c, window=9)
    want = definition(q, k, v, c, window=9, asks=np.ones((2, T), bool), seen=np.ones((2, S), bool))
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_updated_centroids_keep_their_dtype():
    x = jnp.ones((1, 5, 2, 4), jnp.bfloat16)
    centroids = jax.random.normal(jax.random.key(0), (2, 3, 4), jnp.bfloat16)
    assert updated_centroids(centroids, x, x).dtype == jnp.bfloat16


def test_the_sphere_does_not_depend_on_the_unit():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
    np.testing.assert_allclose(on_sphere(x * 1e20), on_sphere(x * 1e3), atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 3e38, -3e38])
def test_padded_keys_of_any_size_get_no_gradient(size):
    q, k, v, c = draw(9, 9)
    mask = Padding(jnp.array([5, 9], jnp.int32))
    loss = lambda k: (attend(q, k, v, c, window=4, mask=mask) ** 2).sum()
    grad = jax.jit(jax.grad(loss))
    np.testing.assert_array_equal(grad(k.at[0, 5:].set(size)), grad(k).at[0, 5:].set(0))
