"""Linformer and the paper's ways of sharing its projections, against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Padding
from attn.compressed.linformer import Linformer, linformer_attention
from attn.testing import inputs

SHARED = [Linformer(features=3, sharing=s) for s in ("none", "headwise", "key_value", "layer")]


def oracle(q, k, v, e, f, keys):
    """One batch row, q [T, N, H]; e and f are a list of [R, L], one a key head."""
    T, N, H = q.shape
    _, K, D = v.shape
    out = np.zeros((T, N, D))
    for n in range(N):
        kh = n // (N // K)
        short = sum(np.outer(e[kh][:, s], k[s, kh]) for s in keys)
        values = sum(np.outer(f[kh][:, s], v[s, kh]) for s in keys)
        for t in range(T):
            w = np.exp(short @ q[t, n] / np.sqrt(H))
            out[t, n] = w / w.sum() @ values
    return out


@pytest.mark.parametrize("mechanism", SHARED, ids=repr)
def test_it_is_the_papers_equation(mechanism):
    q, k, v, learned = inputs(mechanism, T=5, S=7)
    lengths = [7, 4]
    with jax.default_matmul_precision("highest"):
        got = mechanism(q, k, v, mask=Padding(jnp.array(lengths)), **learned)
    e = np.asarray(learned["key_projection"], np.float64)
    f = np.asarray(learned.get("value_projection", e), np.float64)
    assert len(e) == (2 if mechanism.sharing == "none" else 1)
    assert (mechanism.sharing in ("key_value", "layer")) == ("value_projection" not in learned)
    for row, length in enumerate(lengths):
        arrays = [np.asarray(x[row], np.float64) for x in (q, k, v)]
        per_head = [list(np.broadcast_to(x, (2, *x.shape[1:]))) for x in (e, f)]
        want = oracle(*arrays, *per_head, range(length))
        np.testing.assert_allclose(got[row], want, atol=2e-5)


def test_a_shared_projection_is_the_same_for_every_head():
    mechanism = SHARED[1]
    q, k, v, learned = inputs(mechanism)
    apart = {name: jnp.repeat(x, 2, axis=0) for name, x in learned.items()}
    one = mechanism(q, k, v, **learned)
    np.testing.assert_allclose(one, linformer_attention(q, k, v, **apart), atol=1e-6)
    swapped = mechanism(q[:, :, ::-1], k[:, :, ::-1], v[:, :, ::-1], **learned)
    np.testing.assert_allclose(swapped[:, :, ::-1], one, atol=1e-6)


def test_gradients_of_a_shared_projection_are_summed_over_heads():
    q, k, v, learned = inputs(SHARED[2])
    loss = lambda e, f: (
        linformer_attention(q, k, v, key_projection=e, value_projection=f) ** 2
    ).sum()
    e = learned["key_projection"]
    both = jnp.repeat(e, 2, axis=0)
    apart = sum(x.sum(0) for x in jax.grad(loss, argnums=(0, 1))(both, both))
    shared = jax.grad(lambda e: (SHARED[2](q, k, v, key_projection=e) ** 2).sum())(e)
    np.testing.assert_allclose(shared[0], apart, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mechanism", [SHARED[0], SHARED[3]], ids=repr)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_stays_in_its_row_and_head(mechanism, place):
    *arrays, learned = inputs(mechanism, T=5, S=7)
    spoilt = list(arrays)
    spoilt[place] = arrays[place].at[1, 3, 1, 0].set(jnp.inf)
    want = np.zeros((2, 5, 4), bool)
    want[1, *((3, 1) if place == 0 else (slice(None), slice(2, None)))] = True

    def loss(q, k, v, learned):  # of the other batch row
        out = mechanism(q, k, v, **learned)
        return (out[0] ** 2).sum(), out

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
    got, out = run(*spoilt, learned)
    assert (np.isnan(out) == want[..., None]).all()
    clean, _ = run(*arrays, learned)
    jax.tree.map(np.testing.assert_array_equal, got[3], clean[3])
    for x, y in zip(got[:3], clean[:3]):
        np.testing.assert_array_equal(x, y)


def test_bad_settings_and_arrays_are_named():
    for settings in ({"features": 0}, {"features": -2}):
        with pytest.raises(ValueError, match="features"):
            Linformer(**settings)
    with pytest.raises(ValueError, match="sharing: expected one of none, headwise, key_value"):
        Linformer(sharing="layerwise")
    q, k, v, learned = inputs(SHARED[0])
    e = learned["key_projection"]
    with pytest.raises(ValueError, match=r"value_projection: expected .* got nothing"):
        SHARED[0](q, k, v, key_projection=e)
    with pytest.raises(TypeError, match="value_projection: Linformer takes key_projection with"):
        SHARED[2](q, k, v, **learned)
    for wrong in (e[:, :, :5], jnp.ones((3, 3, 30)), e[0], e[:, :0]):
        with pytest.raises(ValueError, match="key_projection: expected"):
            linformer_attention(q, k, v, key_projection=wrong)
    with pytest.raises(ValueError, match="value_projection: expected 3 rows"):
        linformer_attention(q, k, v, key_projection=e, value_projection=e[:, :2])


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    q, k, v, learned = inputs(SHARED[1], **shape)
    out = SHARED[1](q, k, v, **learned)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    assert (np.asarray(out) == 0).all()
