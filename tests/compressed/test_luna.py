"""Luna's pack and unpack attention against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Causal, Padding
from attn.compressed.luna import Luna, luna_attention
from attn.testing import inputs


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_it_is_pack_then_unpack():
    mechanism = Luna(length=3)
    q, k, v, learned = inputs(mechanism, T=5, S=7)
    lengths = [7, 4]
    with jax.default_matmul_precision("highest"):
        got = mechanism(q, k, v, mask=Padding(jnp.array(lengths)), **learned)
    p = np.asarray(learned["packed"], np.float64)
    for row, n in enumerate(lengths):
        x, y, z = (np.asarray(a[row], np.float64) for a in (q, k, v))
        for head in range(4):
            y_n, z_n = y[:n, head // 2], z[:n, head // 2]
            pack = softmax(p[head // 2] @ y_n.T / np.sqrt(8))
            want = softmax(x[:, head] @ (pack @ y_n).T / np.sqrt(8)) @ (pack @ z_n)
            np.testing.assert_allclose(got[row, :, head], want, atol=2e-5)


def test_projecting_the_packed_sequence_is_packing_the_projections():
    """What the record's docstring says of keys and values: A (x W) = (A x) W, for one head."""
    rng = np.random.default_rng(0)
    x, w_k, w_v = rng.normal(size=(6, 8)), rng.normal(size=(8, 8)), rng.normal(size=(8, 5))
    p, q = rng.normal(size=(3, 8)), rng.normal(size=(4, 8))
    pack = softmax(p @ (x @ w_k).T / np.sqrt(8))
    packed = pack @ x
    want = softmax(q @ (packed @ w_k).T / np.sqrt(8)) @ (packed @ w_v)
    arrays = [jnp.asarray(a[:, None], jnp.float32) for a in (q, x @ w_k, x @ w_v)]
    with jax.default_matmul_precision("highest"):
        got = luna_attention(*arrays, packed=jnp.asarray(p[None], jnp.float32))
    np.testing.assert_allclose(got[:, 0], want, atol=2e-4)


def test_constant_values_come_back():
    """Weights of both attentions sum to 1."""
    mechanism = Luna(length=4)
    q, k, v, learned = inputs(mechanism)
    out = mechanism(q, k, jnp.ones_like(v), **learned)
    np.testing.assert_allclose(out, 1, atol=1e-5)
    np.testing.assert_allclose(mechanism.weights(q, k, **learned).sum(-1), 1, atol=1e-5)


def test_bad_settings_and_arrays_are_named():
    for length in (0, -1, 2.5):
        with pytest.raises(ValueError, match="length"):
            Luna(length=length)
    q, k, v, learned = inputs(Luna(length=3))
    p = learned["packed"]
    with pytest.raises(ValueError, match=r"packed: expected \[2, 4, 8\]"):
        Luna(length=4)(q, k, v, packed=p)
    for wrong in (p[:1], p[..., :-1], p[0], p[:, :0]):
        with pytest.raises(ValueError, match="packed: expected"):
            luna_attention(q, k, v, packed=wrong)
    with pytest.raises(NotImplementedError, match="Causal"):
        luna_attention(q, k, v, packed=p, mask=Causal())


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    mechanism = Luna(length=50)
    q, k, v, learned = inputs(mechanism, **shape)
    out = mechanism(q, k, v, **learned)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    assert (np.asarray(out) == 0).all()
