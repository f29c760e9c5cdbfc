"""Decoding with a bias that is an array: each step takes its row, of the keys that are still there.
With a bias by indices it is law 9."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import at_once

from attn import (
    Alibi,
    BigBird,
    Causal,
    Luong,
    Sinks,
    SlidingWindow,
    Softmax,
    Synthesizer,
    TalkingHeads,
)
from attn.testing import inputs

T = 9
MECHANISMS = [
    Softmax(),
    TalkingHeads(),
    SlidingWindow(left=3),
    Sinks(sinks=2, window=3),
    BigBird.examples()[0],
]
SIZES = dict(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, max_length=T)


def stepped(mechanism, bias, count):
    """The outputs of `count` steps, and the whole's; `inputs` of T tokens."""
    q, k, v, learned = inputs(mechanism, T=T, S=T)
    state, step, outs = mechanism.init_state((2,), **SIZES), jax.jit(mechanism.step), []
    for t in range(count):
        state, out = step(state, *(x[:, t : t + 1] for x in (q, k, v)), bias=bias, **learned)
        outs.append(out)
    return jnp.concatenate(outs, 1), mechanism(q, k, v, mask=Causal(), bias=bias, **learned)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    "shape", at_once([(2, 4, T, T), (1, 4, 1, T), (2, 1, T, 1)], [(1, 4, 1, T)]), ids=str
)
def test_each_step_takes_its_row_of_an_array(mechanism, shape):
    bias = jax.random.normal(jax.random.key(0), shape)
    np.testing.assert_allclose(*stepped(mechanism, bias, T), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [*MECHANISMS, Luong(), Synthesizer(hidden=3)], ids=lambda m: m.name
)
@pytest.mark.parametrize("shape", [(2, 4, T, T), (1, 4, 1, T)], ids=str)
def test_a_prompt_takes_its_corner_of_an_array(mechanism, shape):
    """That of the whole, as a step takes it, was refused as too large."""
    bias = jax.random.normal(jax.random.key(0), shape)
    q, k, v, learned = inputs(mechanism, T=T, S=T)
    first = lambda x: x[:, :4]
    prefill = jax.jit(functools.partial(mechanism.prefill, max_length=T))
    state, out = prefill(*map(first, (q, k, v)), bias=bias, **learned)
    whole = jax.jit(mechanism)(q, k, v, mask=Causal(), bias=bias, **learned)
    np.testing.assert_allclose(out, whole[:, :4], rtol=1e-4, atol=1e-5)
    one = lambda x: x[:, 4:5]
    _, out = jax.jit(mechanism.step)(state, *map(one, (q, k, v)), bias=bias, **learned)
    np.testing.assert_allclose(out, whole[:, 4:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_slopes_of_16_bits_are_multiplied_in_32(mechanism):
    bias = Alibi(jnp.array([0.3, 0.7, 1.1, 0.1], jnp.bfloat16))
    np.testing.assert_allclose(*stepped(mechanism, bias, T), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_a_token_past_the_end_of_an_array_is_nan(mechanism):
    bias = jnp.zeros((1, 4, 5, 5))
    q, k, v, learned = inputs(mechanism, T=T, S=T)
    state, step = mechanism.init_state((2,), **SIZES), jax.jit(mechanism.step)
    for t in range(7):
        state, out = step(state, *(x[:, t : t + 1] for x in (q, k, v)), bias=bias, **learned)
        assert bool(jnp.isnan(out).all()) == (t >= 5), t


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_a_bias_of_other_heads_is_named(mechanism):
    q, k, v, learned = inputs(mechanism, T=1, S=1)
    state = mechanism.init_state((2,), **SIZES)
    with pytest.raises(ValueError, match=r"^bias: expected"):
        mechanism.step(state, q, k, v, bias=jnp.zeros((1, 3, T, T)), **learned)
