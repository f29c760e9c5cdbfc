"""Bounded-memory control against the token loop in NumPy, and its decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import FULL, Causal, Padding, Segments
from attn.compressed.abc import ABC, abc_attention
from attn.testing import inputs

run = jax.jit(lambda m, q, k, v, g, mask: m(q, k, v, mask=mask, **g), static_argnums=0)


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def oracle(q, k, v, control, *, keys, offset=None):
    """One batch row, q [T, N, H]: sums over the tokens that each query sees."""
    T, N, H = q.shape
    K, D = v.shape[1:]
    out = np.zeros((T, N, D))
    for n in range(N):
        kh = n // (N // K)
        for t in range(T):
            seen = [s for s in keys if offset is None or s <= t + offset]
            if not seen:
                continue
            f = np.exp(k[seen, kh] @ control[kh])  # [seen, M]
            slots_k = f.T @ k[seen, kh] / f.sum(0)[:, None]
            slots_v = f.T @ v[seen, kh] / f.sum(0)[:, None]
            out[t, n] = softmax(slots_k @ q[t, n] / np.sqrt(H)) @ slots_v
    return out


@pytest.mark.parametrize("offset", [None, 0, 3, -3, 30])
def test_it_is_the_papers_equation(offset):
    mechanism = ABC(slots=3, chunk=4)
    q, k, v, learned = inputs(mechanism, T=9, S=11)
    keys = [list(range(11)), [1, 2, 6, 10]]
    there = np.array([[s in row for s in range(11)] for row in keys])
    mask = (FULL if offset is None else Causal(offset)) & Padding(keys=jnp.asarray(there))
    with jax.default_matmul_precision("highest"):
        got = run(mechanism, q, k, v, learned, mask)
    for row in range(2):
        arrays = [np.asarray(x, np.float64) for x in (q[row], k[row], v[row], learned["control"])]
        np.testing.assert_allclose(
            got[row], oracle(*arrays, keys=keys[row], offset=offset), atol=2e-5
        )


@pytest.mark.slow
def test_chunks_change_nothing():
    q, k, v, learned = inputs(ABC(slots=3), T=13, S=13)
    whole = run(ABC(slots=3, chunk=64), q, k, v, learned, Causal())
    for chunk in (1, 4):
        got = run(ABC(slots=3, chunk=chunk), q, k, v, learned, Causal())
        np.testing.assert_allclose(got, whole, atol=1e-5)


def test_controls_far_apart_neither_overflow_nor_vanish():
    """Log-controls of +-1000 come and go; the slots hold the largest so far."""
    mechanism = ABC(slots=2, chunk=4)
    q, k, v, learned = inputs(mechanism, T=10, S=10, batch=(1,), N=1, K=1)
    control = learned["control"].at[:].set(0).at[0, 0, 0].set(1)
    k = k.at[0, :, 0, 0].set(jnp.array([-1e3, -999, 1e3, 999, -5, 0, 1002, 3, -1e3, 1001]))
    with jax.default_matmul_precision("highest"):
        got = np.asarray(run(mechanism, q * 1e-3, k, v, {"control": control}, Causal()))
    for t in range(10):
        log_f = np.asarray(k[0, : t + 1, 0] @ control[0], np.float64).T  # [2, t + 1]
        f = softmax(log_f)
        slots_k, slots_v = f @ np.asarray(k[0, : t + 1, 0]), f @ np.asarray(v[0, : t + 1, 0])
        want = softmax(slots_k @ np.asarray(q[0, t, 0]) * 1e-3 / np.sqrt(8)) @ slots_v
        np.testing.assert_allclose(got[0, t, 0], want, atol=1e-4)


def test_one_slot_with_no_control_is_the_running_mean():
    q, k, v, _ = inputs(ABC(slots=1), T=6, S=6, N=2)
    out = run(ABC(slots=1), q, k, v, {"control": jnp.zeros((2, 8, 1))}, Causal())
    mean = jnp.cumsum(v, 1) / jnp.arange(1, 7)[:, None, None]
    np.testing.assert_allclose(out, mean, atol=1e-5)


step = jax.jit(lambda m, *arrays, **g: m.step(*arrays, **g), static_argnums=0)
prefill = jax.jit(lambda m, *arrays, **g: m.prefill(*arrays, max_length=9, **g), static_argnums=0)


def test_decoding_goes_on_from_a_prompt_with_a_state_of_constant_size():
    mechanism = ABC(slots=3, chunk=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    whole = run(mechanism, q, k, v, learned, Causal())
    cut = lambda start, stop: (x[:, start:stop] for x in (q, k, v))
    state, out = prefill(mechanism, *cut(0, 5), **learned)
    sizes = [x.shape for x in jax.tree.leaves(state)]
    np.testing.assert_allclose(out, whole[:, :5], atol=1e-5)
    for start, stop in ((5, 6), (6, 9)):
        state, out = step(mechanism, state, *cut(start, stop), **learned)
        np.testing.assert_allclose(out, whole[:, start:stop], atol=1e-5)
    assert [x.shape for x in jax.tree.leaves(state)] == sizes


def test_a_token_that_is_not_finite_is_seen_from_then_on_in_its_head():
    mechanism = ABC(slots=3, chunk=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9, K=4)
    want = np.zeros((9, 4), bool)
    want[5:, 1] = True
    for spoilt in ((q, k.at[:, 5, 1].set(jnp.nan), v), (q, k, v.at[:, 5, 1].set(jnp.inf))):
        lost = np.isnan(run(mechanism, *spoilt, learned, Causal())).any(-1)
        assert (lost == want).all()
        state, _ = prefill(mechanism, *(x[:, :6] for x in spoilt), **learned)
        _, out = step(mechanism, state, *(x[:, 6:7] for x in spoilt), **learned)
        assert (np.isnan(out).any(-1) == want[6:7]).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"slots": 0}, "slots"), ({"slots": -1}, "slots"), ({"chunk": 0}, "chunk")],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(ValueError, match=name):
        ABC(**settings)


def test_bad_arrays_are_named():
    mechanism = ABC(slots=3)
    q, k, v, learned = inputs(mechanism, T=4, S=4)
    control = learned["control"]
    with pytest.raises(ValueError, match=r"control: expected \[2, 8, 4\]"):
        ABC(slots=4)(q, k, v, control=control)
    for wrong in (control[:1], control[:, :-1], control[0], control[..., :0]):
        with pytest.raises(ValueError, match="control: expected"):
            abc_attention(q, k, v, control=wrong)
    ids = jnp.zeros(q.shape[:2], int)
    with pytest.raises(NotImplementedError, match="Segments"):
        abc_attention(q, k, v, control=control, mask=Segments(ids, ids))
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
    state = mechanism.init_state((2,), **sizes, max_length=4)
    with pytest.raises(ValueError, match="state: expected"):
        mechanism.step(state, q[:1, :1], k[:1, :1], v[:1, :1], control=control)
    with pytest.raises(ValueError, match="k: expected as many tokens as q, 1, got 4"):
        mechanism.step(state, q[:, :1], k, v, control=control)
    with pytest.raises(ValueError, match="max_length"):
        mechanism.prefill(q, k, v, max_length=3, control=control)


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    mechanism = ABC(slots=50)
    q, k, v, learned = inputs(mechanism, **shape)
    for mask in (FULL, Causal()):
        out = mechanism(q, k, v, mask=mask, **learned)
        assert out.shape == (*q.shape[:-1], v.shape[-1])
        assert (np.asarray(out) == 0).all()
