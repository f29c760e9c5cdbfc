"""Derivatives of gradients, as in Hessian products: those of the definition, also where a row's
cotangent is 0, as at the start of a residual branch that begins at 0, and where tokens are equal.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import at_once

import attn
from attn import FULL, Causal
from attn.testing import inputs


def hessian_product(attend, *inputs):
    """H u of half the sum of squares of each output, less the output itself in every third row."""

    def loss(*inputs):
        out = attend(*inputs)
        unused = (jnp.arange(out.shape[-3]) % 3 == 0)[:, None, None]
        return jnp.square(out - jnp.where(unused, jax.lax.stop_gradient(out), 0)).sum() / 2

    slopes = jax.grad(loss, argnums=(0, 1, 2))
    along = tuple(jax.random.normal(jax.random.key(n), x.shape) for n, x in enumerate(inputs))
    return jax.jit(lambda *inputs: jax.jvp(slopes, inputs, along)[1])(*inputs)


def assert_same(got, want):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(y).max())


@pytest.mark.parametrize("kind", at_once(attn.MECHANISMS, ("linear",)))
def test_they_are_those_of_the_definition(kind):
    mechanism = attn.MECHANISMS[kind].examples()[0]
    q, k, v, arrays = inputs(mechanism, T=11, S=11)
    k = k.at[:, :3].set(k[:, :1]).at[:, 4].set(0)
    mask = Causal() if Causal in mechanism.honours else FULL
    call, reference = (
        functools.partial(f, mask=mask, **arrays) for f in (mechanism, mechanism.reference)
    )
    assert_same(hessian_product(call, q, k, v), hessian_product(reference, q, k, v))


FORMS = {
    "short": functools.partial(attn.dot_product_attention, implementation="blockwise"),
    "loops": functools.partial(attn.dot_product_attention, block=8),
    "strips": functools.partial(attn.window_attention, left=600, right=600),
}


@pytest.mark.parametrize("form", at_once(FORMS, ("short", "loops")))
def test_each_form_of_softmax_has_them(form):
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, 520 if form == "strips" else 13, 1, 4)) for key in keys)
    plain = functools.partial(attn.dot_product_attention, implementation="materialized")
    assert_same(hessian_product(FORMS[form], q, k, v), hessian_product(plain, q, k, v))


def test_a_sink_as_high_as_the_scores_has_them_in_a_scan():
    """There jax's own logaddexp has others at a tie."""
    q, k = jnp.zeros((3, 1, 1, 1)), jnp.ones((1, 1, 1))
    attend = functools.partial(attn.dot_product_attention, sinks=jnp.zeros(1), return_lse=True)

    def loss(q, part):
        one = lambda total, q: (total + attend(q, k, k)[part].sum(), None)
        return jax.lax.scan(one, 0.0, q)[0]

    # of the output, sigmoid(q), 0 where q is 0; of the log-sum-exp, log(1 + exp(q)), a quarter
    for part, want in ((0, 0.0), (1, 0.25)):
        slope = jax.grad(functools.partial(loss, part=part))
        np.testing.assert_allclose(jax.jvp(slope, (q,), (jnp.ones_like(q),))[1], want + 0 * q)
