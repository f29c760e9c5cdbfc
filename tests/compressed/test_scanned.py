"""Causal forms with slots read token by token, `attn/compressed/_scanned.py`, and `pooled`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Causal
from attn.compressed.abc import ABC
from attn.compressed.luna import Luna
from attn.compressed.pooled import Pooled
from attn.testing import inputs
from attn.testing.cases import widen


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("mechanism", [ABC(slots=3, chunk=4), Luna(length=3, chunk=4)])
def test_queries_of_any_size_read_the_slots_that_they_ask_for(mechanism):
    """XLA rounded the scores where it looked for the largest, and not where it subtracted it."""
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    run = jax.jit(lambda q, k, v, learned: mechanism(q, k, v, mask=Causal(), **learned))
    got = run(q * 1e12, k, v, learned)
    with jax.enable_x64(True):
        q, k, v, learned = widen((q * 1e12, k, v, learned))
        want = mechanism.reference(q, k, v, mask=Causal(), **learned)
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.optimised
def test_so_does_the_definition():
    """Luna's was NaN from scores of 1e10 on, where it divided their sums and not what is summed."""
    mechanism = Luna(length=3)
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    q, seen = q * 1e12, Causal()
    want = mechanism.reference(q, k, v, mask=seen, **learned)  # op by op
    got = jax.jit(lambda q: mechanism.reference(q, k, v, mask=seen, **learned))(q)
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize(
    "mechanism", [ABC(slots=3, chunk=4), Luna(length=3, chunk=4), Pooled(stride=4)]
)
def test_values_of_the_future_of_any_size_reach_no_gradient_of_the_past(mechanism):
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    past = lambda v, *rest: (mechanism(*rest[:2], v, mask=Causal(), **rest[2])[:, :6] ** 2).sum()
    grad = jax.jit(jax.grad(past, argnums=(0, 1, 2, 3)))
    large = v.at[:, 6:].set(3e38 * jnp.sign(v[:, 6:]))
    dirty, clean = grad(large, q, k, learned), grad(v, q, k, learned)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)
