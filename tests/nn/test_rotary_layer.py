"""Rotary's options and xPos in encoders and decoders."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, build, config, run

from attn import (
    FULL,
    GLA,
    NSA,
    Causal,
    DeltaNet,
    Differential,
    Linear,
    Reformer,
    Softmax,
    Window,
)
from attn.nn import Attention, Decoder
from attn.positions import Rotary

RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 11, (2, 7)), jnp.int32)
LM = dict(head="token", pooling="none", classes=11, head_dim=8)
YARN = Rotary(scaling="yarn", factor=4.0, original_length=3, fraction=0.5)
FORMS = [
    dict(positions="rotary", rotary=YARN, kv_heads=1, mechanism=SOFTMAX),
    dict(positions="rotary", rotary=Rotary(scaling="ntk", factor=2.0), mechanism=Linear(chunk=4)),
    dict(positions="xpos", layers=2, scan=True, mechanism=SOFTMAX),
]


@pytest.mark.parametrize("changes", FORMS, ids=["yarn", "ntk", "xpos"])
def test_step_by_step_equals_at_once(changes):
    model = Decoder(config(**LM, **changes), key=jax.random.key(0))
    whole = run(model, TOKENS)
    graph, params = nnx.split(model)

    @jax.jit
    def go(params, tokens):
        model = nnx.merge(graph, params)
        state, first = model.prefill(tokens[:, :3])
        one = lambda state, token: nnx.merge(graph, params).step(state, token)
        return first, jax.lax.scan(one, state, tokens[:, 3:].T)[1]

    first, rest = go(params, TOKENS)
    np.testing.assert_allclose(first, whole[:, 2], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(rest, jnp.moveaxis(whole[:, 3:], 1, 0), rtol=2e-4, atol=2e-5)
    plain = Decoder(config(**LM, **changes | dict(positions="none", rotary=Rotary())),
                    key=jax.random.key(0))  # fmt: skip
    assert abs(run(plain, TOKENS) - whole).max() > 1e-3


def test_xpos_at_length_4096_is_finite_and_depends_on_the_distance_only():
    layer = Attention(8, num_heads=2, mechanism=SOFTMAX, max_length=4096, xpos=True,
                      key=jax.random.key(0))  # fmt: skip
    x = jnp.asarray(RNG.normal(size=(1, 9, 8)), jnp.float32)
    near, far = (
        run(layer, x, mask=Causal(), positions=jnp.arange(9) + start) for start in (0, 4087)
    )
    np.testing.assert_allclose(near, far, atol=2e-3)
    assert np.isfinite(far).all()


@pytest.mark.parametrize(
    ("mechanism", "xpos", "by_distance"),
    [
        (SOFTMAX, False, True),
        (Softmax(qk_norm=True), False, True),
        (DeltaNet(), False, True),
        (DeltaNet(), True, False),
        (Linear(), False, False),
        (GLA(), False, False),
    ],
    ids=["softmax", "normed", "delta", "delta, xpos", "linear", "gla"],
)
def test_what_is_made_of_rotated_q_and_k_may_depend_on_the_positions(mechanism, xpos, by_distance):
    layer = Attention(8, num_heads=2, mechanism=mechanism, max_length=2048, xpos=xpos,
                      key=jax.random.key(0))  # fmt: skip
    x = jnp.asarray(RNG.normal(size=(1, 9, 8)), jnp.float32)
    near, far = (
        run(layer, x, mask=Causal(), positions=jnp.arange(9) + start) for start in (0, 2000)
    )
    assert (abs(near - far).max() < 1e-4) == by_distance


@pytest.mark.parametrize("shape", [(0, 7), (2, 0)], ids=str)
@pytest.mark.parametrize("positions", ["rotary", "xpos"])
@pytest.mark.parametrize(
    "mechanism", [SOFTMAX, NSA(separate=True), Differential()], ids=["softmax", "nsa", "parts"]
)
def test_no_rows_and_no_tokens_are_rotated_too(mechanism, positions, shape):
    encoder = build(mechanism=mechanism, positions=positions, head_dim=8)
    out = jax.eval_shape(lambda: encoder(np.zeros(shape, np.int32), mask=Causal()))
    assert out.shape == (shape[0], 3)


def test_no_prompts_are_continued_by_rotary_too():
    model = Decoder(config(**LM, positions="rotary"), key=jax.random.key(0))
    assert model.generate(TOKENS[:0, :3], 2, temperature=0.0).shape == (0, 5)


def test_xpos_without_causal_is_refused():
    encoder = build(positions="xpos", head_dim=8)
    for mask in (FULL, Window(2, 0), Causal() | Window(1, 1)):
        with pytest.raises(ValueError, match=r"mask: expected one joined by & with Causal\(\)"):
            encoder(TOKENS, mask=mask)
    assert jax.eval_shape(lambda: encoder(TOKENS, mask=Window(2, 0) & Causal())).shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(rotary=Rotary(base=9.0)), "rotary: expected its defaults with positions='sinusoidal"),
        (dict(positions="rotary", rotary=8), "rotary: expected an attn.positions.Rotary, got 8"),
        (dict(positions="rotary", rotary=Rotary(fraction=0.3)), "rotary: rotary turns pairs: exp"),
        (dict(positions="xpos", heads=4), "positions: xpos turns pairs, so it needs an even head"),
        (dict(positions="xpos", mechanism=Reformer(shared_qk=True)), "positions: xpos scales"),
        (dict(positions="xpos", mechanism=Softmax(qk_norm=True)), "positions: xPos scales"),
        (
            dict(positions="rotary", head_dim=8, rotary=YARN, mechanism=Softmax(qk_norm=True)),
            "rotary: yarn scales",
        ),
        (
            dict(positions="xpos", pooling="cls"),
            "pooling: expected another with posit",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        config(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "name"), [(dict(xpos=True), "xpos"), (dict(rotary=YARN), "rotary")]
)
def test_a_record_that_undoes_the_scales_of_positions_is_refused_by_a_layer(changes, name):
    layer = lambda mechanism, **more: Attention(
        8, num_heads=2, mechanism=mechanism, max_length=16, key=jax.random.key(0), **changes, **more
    )
    with pytest.raises(ValueError, match=f"{name}: .* scales queries and keys, which Softmax with"):
        layer(Softmax(qk_norm=True))
    layer(Softmax(), qk_norm=True)  # comes before them


def test_rotary_positions_that_scale_nothing_go_with_a_record_that_norms_queries_and_keys():
    config(positions="rotary", head_dim=8, mechanism=Softmax(qk_norm=True))
