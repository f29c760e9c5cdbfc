"""Induced set attention against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Causal, Padding
from attn.compressed.abc import ABC
from attn.compressed.luna import Luna
from attn.compressed.set import Set, set_attention
from attn.testing import inputs


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_it_is_two_attentions():
    mechanism = Set(points=3)
    q, k, v, learned = inputs(mechanism, T=5, S=7)
    lengths = [7, 4]
    with jax.default_matmul_precision("highest"):
        got = mechanism(q, k, v, mask=Padding(jnp.array(lengths)), **learned)
    points, key_map = (np.asarray(learned[n], np.float64) for n in ("inducing_points", "key_map"))
    for row, n in enumerate(lengths):
        x, y, z = (np.asarray(a[row], np.float64) for a in (q, k, v))
        for head in range(4):
            h = softmax(points[head // 2] @ y[:n, head // 2].T / np.sqrt(8)) @ z[:n, head // 2]
            want = softmax(x[:, head] @ (h @ key_map[head // 2]).T / np.sqrt(8)) @ h
            np.testing.assert_allclose(got[row, :, head], want, atol=2e-5)


def test_it_is_permutation_equivariant_and_invariant_as_the_paper_has_it():
    """Permuting the set permutes the outputs; permuting keys alone changes nothing."""
    mechanism = Set(points=4)
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    order = np.random.default_rng(0).permutation(9)
    out = mechanism(q, k, v, **learned)
    moved = mechanism(q[:, order], k[:, order], v[:, order], **learned)
    np.testing.assert_allclose(moved, out[:, order], atol=1e-5)
    np.testing.assert_allclose(mechanism(q, k[:, order], v[:, order], **learned), out, atol=1e-5)


def test_points_and_map_learn():
    mechanism = Set(points=3)
    q, k, v, learned = inputs(mechanism)
    slopes = jax.grad(lambda g: (mechanism(q, k, v, **g) ** 2).sum())(learned)
    assert all((np.abs(x).max((1, 2)) > 1e-3).all() for x in slopes.values())


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Set(points=3), Luna(length=3)], ids=repr)
def test_the_definition_takes_learned_arrays_of_another_width(mechanism):
    """It refused learned arrays in bfloat16 beside tokens in float32, by the name of k."""
    q, k, v, learned = inputs(mechanism, T=5, S=5)
    learned = jax.tree.map(lambda x: x.astype(jnp.bfloat16), learned)
    want = mechanism(q, k, v, **learned)
    np.testing.assert_allclose(mechanism.reference(q, k, v, **learned), want, atol=2e-5)


def test_bad_settings_and_arrays_are_named():
    for points in (0, -1, 2.5):
        with pytest.raises(ValueError, match="points"):
            Set(points=points)
    q, k, v, learned = inputs(Set(points=3))
    with pytest.raises(ValueError, match=r"inducing_points: expected \[2, 4, 8\]"):
        Set(points=4)(q, k, v, **learned)
    for name in learned:
        for wrong in (learned[name][:1], learned[name][..., :-1], learned[name][0]):
            with pytest.raises(ValueError, match=f"{name}: expected"):
                set_attention(q, k, v, **{**learned, name: wrong})
    with pytest.raises(NotImplementedError, match="Causal"):
        set_attention(q, k, v, mask=Causal(), **learned)


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    mechanism = Set(points=50)
    q, k, v, learned = inputs(mechanism, **shape)
    out = mechanism(q, k, v, **learned)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    assert (np.asarray(out) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Set(points=3), Luna(length=3), ABC(slots=3)], ids=repr)
def test_scores_that_overflow_reach_no_gradient_of_other_rows(mechanism):
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    loss = lambda q, k, v, learned: (mechanism(q, k, v, **learned)[0] ** 2).sum()
    grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    large = k.at[1].set(3e38 * jnp.sign(k[1]))
    dirty, clean = grad(q, large, v, learned), grad(q, k, v, learned)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    assert np.isnan(mechanism(q, large, v, **learned)[1]).any()
