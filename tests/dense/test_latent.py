"""Latent attention: the paper's equations, what a layer may turn, and what decoding costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import attn
from attn import Causal, Latent, Padding
from attn.nn import Attention, EncoderConfig
from attn.positions import Rotary
from attn.testing import inputs, rms

T, S = 9, 12
LENGTHS = np.array([7, 12])
SEEN = np.tril(np.ones((T, S), bool)) & (np.arange(S) < LENGTHS[:, None, None])
MASK = Causal() & Padding(jnp.asarray(LENGTHS))


@pytest.mark.parametrize(("k_heads", "decoupled"), [(1, 2), (2, 0), (4, 5)])
def test_equals_its_definition(k_heads, decoupled):
    mechanism = Latent(decoupled=decoupled, implementation="blockwise", block=8)
    q, k, v, learned = inputs(mechanism, T=T, S=S, K=k_heads, scale=2.0)
    bias = np.random.default_rng(3).normal(size=(4, T, S))
    exact = lambda x: np.asarray(x, np.float64)
    given = jax.tree.map(exact, learned)
    row = lambda b: oracle.latent(*map(exact, (q[b], k[b], v[b])), SEEN[b], **given, bias=bias)
    want = np.stack([row(b) for b in range(2)])
    bias = jnp.asarray(bias[None], jnp.float32)
    for form in (mechanism, mechanism.reference):
        got = exact(jax.jit(form)(q, k, v, mask=MASK, bias=bias, **learned))
        assert rms(got - want) / rms(want) < 32 * 2**-23


def test_one_latent_keeps_what_multi_query_attention_keeps():
    layer = Attention(
        24, num_heads=4, num_kv_heads=1, mechanism=Latent(), max_length=9, key=jax.random.key(0)
    )
    state, _ = jax.eval_shape(lambda x: layer.prefill(x, max_length=9), jnp.ones((2, 5, 24)))
    plain = attn.Softmax().init_state(
        (2,), num_heads=4, num_kv_heads=1, head_dim=6, value_dim=6, max_length=9
    )
    assert jax.tree.map(jnp.shape, state.mechanism) == jax.tree.map(jnp.shape, plain)


def test_a_step_rebuilds_no_keys():
    """Nothing it computes is as large as the keys of all heads: 64 tokens x 4 heads x 8."""
    q, k, v, learned = inputs(Latent(), T=1, S=1, K=1)
    state = Latent().init_state(
        (2,), num_heads=4, num_kv_heads=1, head_dim=8, value_dim=6, max_length=64
    )
    step = jax.make_jaxpr(functools.partial(Latent().step, **learned))(state, q, k, v)
    text = str(step)
    assert "2,64,1,14]" in text  # the latents
    assert "2,64,4,8]" not in text
    whole = jax.make_jaxpr(functools.partial(Latent(), **learned))
    long = (jnp.ones((2, 64, n, w)) for n, w in ((4, 8), (1, 8), (1, 6)))
    assert "2,64,4,8]" in str(whole(*long))


def layer(decoupled, **rotary):
    return Attention(
        32,
        num_heads=4,
        num_kv_heads=2,
        mechanism=Latent(decoupled=decoupled),
        max_length=9,
        rotary=Rotary(**rotary),
        key=jax.random.key(0),
    )


def test_turned_scores_depend_on_the_distance_alone():
    made, x = layer(4, fraction=0.5), jax.random.normal(jax.random.key(1), (2, 9, 32))
    here, there = (made(x, positions=jnp.arange(9) + start) for start in (0, 1000))
    np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-4)
    assert rms(made(x) - here) > 0.1 * rms(here)


def test_turning_what_goes_into_the_latent_is_refused():
    x, at = jnp.ones((2, 9, 32)), jnp.arange(9)
    with pytest.raises(ValueError, match=r"^rotary: expected .* first 0 channels .* got 8$"):
        layer(0)(x, positions=at)
    with pytest.raises(ValueError, match=r"^rotary: expected .* first 2 .* decoupled=2, .* got 4$"):
        layer(2, fraction=0.5)(x, positions=at)
    config = functools.partial(
        EncoderConfig, vocab_size=5, max_length=9, classes=3, layers=2, width=32, heads=4
    )
    with pytest.raises(ValueError, match=r"^rotary: expected .* first 3 channels .* got 8$"):
        config(mlp_width=0, mechanism=(attn.Softmax(), Latent(decoupled=3)), positions="rotary")


def test_mistakes_are_named():
    q, k, v, learned = inputs(Latent(decoupled=2))
    run = functools.partial(attn.latent_attention, q, k, v)
    for name, wrong, expected in (
        ("key_up", jnp.ones((4, 12, 9)), r"\[4, 14, 8\], got \[4, 12, 9\]"),
        ("key_up", jnp.ones((4, 12, 0)), r"\[4, 7, 1\], got \[4, 12, 0\]"),
        ("key_up", jnp.float32(1), r"\[4, 7, 1\], got \[\]"),
        ("value_up", jnp.ones((4, 12, 5)), r"\[4, 12, 6\], got \[4, 12, 5\]"),
        ("value_up", jnp.ones((12, 6)), r"\[4, 12, 6\], got \[12, 6\]"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: expected {expected}$"):
            run(**{**learned, name: wrong})
    with pytest.raises(TypeError, match=r"^value_up: expected an array of floats, got NoneType"):
        run(**{**learned, "value_up": None})
    with pytest.raises(ValueError, match=r"^key_up: expected \[4, 14, 8\]"):
        Latent()(q, k, v, **learned)
    with pytest.raises(ValueError, match=r"^decoupled: expected an integer from 0"):
        Latent(decoupled=-1)
    with pytest.raises(ValueError, match=r"^decoupled: expected fewer than the 8 channels"):
        layer(8)
    with pytest.raises(NotImplementedError, match=r"Latent has no T x S matrix to show"):
        Latent().weights(q, k, **learned)
