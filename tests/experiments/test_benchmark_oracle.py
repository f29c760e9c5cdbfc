"""The benchmark's float64 oracles are the mechanisms' own definitions, and see planted mistakes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import MECHANISMS, Causal, Softmax, Window
from experiments.measure import cost, oracle
from experiments.measure.peers import PEERS, token_scan
from experiments.measure.turns import MODES, compiled
from experiments.measure.verdict import judge

SHAPE = cost.Shape(B=2, T=70, N=4, K=2, H=16)
INPUTS = SHAPE.qkvg(0)
CAUSAL = oracle.Softmax(Causal())


def run(function, inputs=INPUTS):
    return compiled(lambda q, k, v, _: function(q, k, v), [inputs], MODES[1]).results()


def look(definition, function, inputs=INPUTS):
    return judge(definition, inputs, inputs[0].dtype.name)(run(function, inputs))


@pytest.mark.parametrize("mask", [Causal(), Window(7, 0), Window(3, 5)], ids=repr)
def test_the_softmax_oracle_is_the_definition(mask):
    found = look(oracle.Softmax(mask), lambda q, k, v: Softmax().reference(q, k, v, mask=mask))
    assert found.error < 1, found


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_a_gradient_that_cancels_is_held_against_the_inputs(name):
    """Of one token q and k do not matter: what rounding leaves was called wrong, by 1e8."""
    inputs = cost.Shape(B=2, T=1, N=4, K=2, H=16).qkvg(0)
    mechanism, definition = MECHANISMS[name](), {"softmax": CAUSAL, "linear": oracle.linear}[name]
    found = look(definition, lambda q, k, v: mechanism(q, k, v, mask=Causal()), inputs)
    assert found.error < 1, found


def test_the_linear_oracle_is_the_definition():
    reference = MECHANISMS["linear"]().reference
    found = look(oracle.linear, lambda q, k, v: reference(q, k, v, mask=Causal()))
    assert found.error < 1, found


@pytest.mark.parametrize("mask", [Causal(), Window(7, 0)], ids=repr)
def test_oracles_differentiate_themselves(mask):
    """The hand-written gradients are the central differences of the same outputs."""
    rng = np.random.default_rng(0)
    q, k, v, g = rng.standard_normal((4, 70, 8))
    rich = oracle.Softmax(
        mask, bias=lambda n, i, j: np.sin(i * j), cap=2.0, sinks=np.ones(1),
        kept=lambda n, i, j: 1.0 + (i + j) % 2,
    )  # fmt: skip
    for function in (rich, oracle.linear) if mask == Causal() else (rich,):
        gradients = function(0, q, k, v, g)[1:]
        for place, gradient in enumerate(gradients):
            u, h = rng.standard_normal(q.shape), 1e-5
            moved = [[*(q, k, v)], [*(q, k, v)]]
            moved[0][place], moved[1][place] = moved[0][place] + h * u, moved[1][place] - h * u
            up, down = (function(0, *x, g)[0] for x in moved)
            assert ((up - down) * g).sum() / (2 * h) == pytest.approx((gradient * u).sum(), 1e-6)


@pytest.mark.parametrize("name", ["jax.nn", "flax.linen", "flax.nnx"])
def test_peers_agree_with_the_oracle(name):
    for mask in (Causal(), Window(7, 0)):
        assert look(oracle.Softmax(mask), PEERS[name](mask, SHAPE.T)).error < 1


def test_the_token_scan_agrees_with_the_oracle():
    assert look(oracle.linear, token_scan(Causal(), SHAPE.T)).error < 1


def test_planted_mistakes_are_caught():
    see = judge(CAUSAL, INPUTS, "float32")
    out, *gradients = run(lambda q, k, v: Softmax()(q, k, v, mask=Causal()))
    assert see((out, *gradients)).error < 1
    for wrong in (out * 1.0001, run(Softmax())[0], out * np.nan):
        found = see((wrong,))
        assert found.error > 1
        assert "output" in found.what
    for place, name in enumerate("qkv"):
        wrong = [*map(np.array, gradients)]
        wrong[place][:, 40] = 0  # one row of seventy
        found = see((out, *wrong))
        assert found.error > 1
        assert f"gradient of {name}" in found.what


def test_a_gradient_that_forgets_a_head_of_its_group_is_caught():
    out, dq, _, dv = run(lambda q, k, v: Softmax()(q, k, v, mask=Causal()))
    q, k, v, g = INPUTS
    half = run(
        lambda q, k, v: Softmax()(q, k, v, mask=Causal()), (q, k, v, g * jnp.eye(4)[-1][:, None])
    )
    assert "gradient of k" in judge(CAUSAL, INPUTS, "float32")((out, dq, half[2], dv)).what


def test_bfloat16_is_held_to_its_own_contract():
    inputs = dataclasses.replace(SHAPE, dtype="bfloat16").qkvg(0)
    assert look(CAUSAL, lambda q, k, v: Softmax()(q, k, v, mask=Causal()), inputs).error < 1
    rough = lambda q, k, v: jax.nn.dot_product_attention(q * 1.02, k, v, is_causal=True)
    assert look(CAUSAL, rough, inputs).error > 1
