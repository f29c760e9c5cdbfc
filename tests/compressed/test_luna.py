"""Luna's pack and unpack attention against loops in NumPy, and its causal form and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import FULL, Causal, Padding, Segments
from attn.compressed.luna import Luna, luna_attention
from attn.testing import inputs

run = jax.jit(lambda m, q, k, v, g, mask: m(q, k, v, mask=mask, **g), static_argnums=0)


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


def running_mean(x, y, z, seen):
    """The paper's f(X, Y, Z): x_t times the mean of y_j^T z_j up to t, over what is seen."""
    total, out = np.zeros((y.shape[1], z.shape[1])), []
    for t in range(len(x)):
        total += seen[t] * np.outer(y[t], z[t])
        out.append(x[t] @ total / max(1, seen[: t + 1].sum()))
    return np.stack(out)


@pytest.mark.parametrize("chunk", [3, 64])
def test_the_causal_form_is_three_running_means(chunk):
    mechanism = Luna(length=3, chunk=chunk)
    q, k, v, learned = inputs(mechanism, T=8, S=8, scale=2.0)
    real = np.ones((2, 8), bool)
    real[0, 6:] = real[1, 0] = real[1, 4] = False
    dirty = lambda x: jnp.where(real[..., None, None], x, jnp.nan)
    with jax.default_matmul_precision("highest"):
        mask = Causal() & Padding(keys=jnp.asarray(real))
        got = jax.jit(mechanism)(q, dirty(k), dirty(v), mask=mask, **learned)
    p = np.asarray(learned["packed"], np.float64)
    for row, head in np.ndindex(2, 4):
        x = np.asarray(q[row, :, head], np.float64) / np.sqrt(8)
        y, z = (np.asarray(a[row, :, head // 2], np.float64) for a in (k, v))
        pack = np.log2(1 + 2 ** (y @ p[head // 2].T / np.sqrt(8)))
        unpack = softmax(running_mean(x, y, pack, real[row]))
        want = running_mean(unpack, pack, z, real[row])
        np.testing.assert_allclose(got[row, :, head], want, rtol=0, atol=2e-5)


def test_one_row_that_packs_all_alike_is_the_running_mean():
    """A score of 0 weighs 1."""
    mechanism = Luna(length=1)
    q, k, v, learned = inputs(mechanism, T=6, S=6)
    learned = {"packed": jnp.zeros_like(learned["packed"])}
    mean = jnp.cumsum(v, 1) / jnp.arange(1, 7)[:, None, None]
    out = run(mechanism, q, k, v, learned, Causal())
    np.testing.assert_allclose(out, jnp.repeat(mean, 2, axis=-2), rtol=0, atol=1e-6)


def test_chunks_change_nothing():
    q, k, v, learned = inputs(Luna(length=3), T=13, S=13)
    whole = run(Luna(length=3), q, k, v, learned, Causal())
    for chunk in (1, 4):
        got = run(Luna(length=3, chunk=chunk), q, k, v, learned, Causal())
        np.testing.assert_allclose(got, whole, rtol=0, atol=2e-6)


SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}


def test_decoding_goes_on_from_a_prompt_with_a_state_of_constant_size():
    mechanism = Luna(length=3, chunk=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    whole = run(mechanism, q, k, v, learned, Causal())
    cut = lambda start, stop: (x[:, start:stop] for x in (q, k, v))
    for max_length in (9, 900):
        state = mechanism.init_state((2,), **SIZES, max_length=max_length)
        # a row: how many tokens; each key head's rows of keys and values, and its poison
        numbers = [x.size for x in jax.tree.leaves(state)]
        assert sum(numbers) == 2 * (1 + 2 * (3 * (8 + 6) + 1))
    state, out = jax.jit(lambda *x: mechanism.prefill(*x, max_length=9, **learned))(*cut(0, 5))
    np.testing.assert_allclose(out, whole[:, :5], rtol=0, atol=2e-6)
    step = jax.jit(lambda *x: mechanism.step(*x, **learned))
    for start, stop in ((5, 6), (6, 6), (6, 9)):
        state, out = step(state, *cut(start, stop))
        np.testing.assert_allclose(out, whole[:, start:stop], rtol=0, atol=2e-6)
        assert [x.size for x in jax.tree.leaves(state)] == numbers


def test_a_token_that_is_not_finite_is_seen_from_then_on_in_its_head():
    mechanism = Luna(length=3, chunk=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9, K=4)
    want = np.zeros((9, 4), bool)
    want[5:, 1] = True
    step = jax.jit(lambda *x: mechanism.step(*x, **learned))
    prefill = jax.jit(lambda *x: mechanism.prefill(*x, max_length=9, **learned))
    for spoilt in ((q, k.at[:, 5, 1].set(jnp.nan), v), (q, k, v.at[:, 5, 1].set(jnp.inf))):
        lost = np.isnan(run(mechanism, *spoilt, learned, Causal())).any(-1)
        assert (lost == want).all()
        state, _ = prefill(*(x[:, :6] for x in spoilt))
        _, out = step(state, *(x[:, 6:7] for x in spoilt))
        assert (np.isnan(out).any(-1) == want[6:7]).all()


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
    ids = jnp.zeros(q.shape[:2], int)
    with pytest.raises(NotImplementedError, match="Segments"):
        luna_attention(
            q, k, v, packed=p, mask=Causal() & Segments(ids, jnp.zeros(k.shape[:2], int))
        )
    for bad in (lambda: Luna(chunk=0), lambda: luna_attention(q, k, v, packed=p, chunk=0)):
        with pytest.raises(ValueError, match="chunk"):
            bad()
    mechanism, state = Luna(length=3), Luna(length=4).init_state((2,), **SIZES, max_length=9)
    with pytest.raises(ValueError, match="state: expected"):
        mechanism.step(state, q[:, :1], k[:, :1], v[:, :1], packed=p)
    with pytest.raises(ValueError, match="k: expected as many tokens as q, 1, got 2"):
        mechanism.step(state, q[:, :1], k[:, :2], v[:, :2], packed=p)
    with pytest.raises(ValueError, match="max_length"):
        mechanism.prefill(q, k, v, max_length=3, packed=p)


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    mechanism = Luna(length=50)
    q, k, v, learned = inputs(mechanism, **shape)
    for mask in (FULL, Causal()):
        out = mechanism(q, k, v, mask=mask, **learned)
        assert out.shape == (*q.shape[:-1], v.shape[-1])
        assert (np.asarray(out) == 0).all()
