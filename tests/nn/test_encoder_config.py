"""EncoderConfig names every mistake, with what was expected, what came and what to do."""

import dataclasses
import re
from fractions import Fraction
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_mechanism import SOFTMAX, Toy, config

from attn import GatedDeltaNet, Sinks, SlidingWindow
from attn.nn import (
    Decoder,
    DualEncoder,
    Encoder,
    Seq2Seq,
    Seq2SeqConfig,
    dropout,
    transformer_base,
)


class Gated(Toy):
    """A record of one's own, which does not check what it asks for."""

    output_gate: ClassVar = "tanh"


class Convolved(Toy):
    short_conv: ClassVar = -1


MISTAKES = [
    (dict(heads=5), "heads: expected a divisor of width 12, got 5; or set head_dim"),
    (dict(heads=4, kv_heads=3), "kv_heads: expected a divisor of heads 4, got 3"),
    (dict(pooling="none"), "pooling: expected cls, last, mean or max with head='classification'"),
    (
        dict(pooling="none", head="dual"),
        "pooling: expected cls, last, mean or max with head='dual'",
    ),
    (dict(head="token"), "pooling: expected 'none' with head='token'"),
    (dict(heads=4, positions="rotary"), "needs an even head width, got 3; set head_dim"),
    (dict(mechanism=(SOFTMAX,) * 3), "mechanism: expected one for each of 2 layers, got 3"),
    (dict(mechanism="softmax"), "mechanism: expected a Mechanism such as attn.Softmax(), or"),
    (dict(mechanism=(SOFTMAX, Toy()), scan=True), "scan: expected the same mechanism in every"),
    (dict(mechanism=(SOFTMAX, Toy()), tied=True), "tied: expected the same mechanism in every"),
    (
        dict(mechanism=(GatedDeltaNet(), SOFTMAX), pooling="cls"),
        "pooling: expected another with GatedDeltaNet, defined with Causal only, where",
    ),
    (
        dict(mechanism=(SlidingWindow(left=3, right=0), Sinks(sinks=1, window=1)), pooling="cls"),
        "pooling: expected another with SlidingWindow and Sinks, in whose pattern CLS at index 0",
    ),
    (
        dict(mechanism=Gated()),
        "mechanism: Gated.output_gate: expected 'silu' or 'sigmoid', or None, got 'tanh'",
    ),
    (
        dict(mechanism=(SOFTMAX, Convolved())),
        "mechanism: Convolved.short_conv: expected a number of taps, 0 for none, got -1",
    ),
    (dict(vocab_size=None), "vocab_size: expected it, for tokens that are ids, or token_width"),
    (dict(token_width=3), "vocab_size: expected it, for tokens that are ids, or token_width"),
    (dict(token_width=0), "token_width: expected an integer from 1 to 2^30, or None, got 0"),
    (dict(positions="grid"), "columns: expected the tokens to a row of the image with positions="),
    (dict(columns=3), "and None with others, got 3 with 'sinusoidal'"),
    (dict(dropout=1.0), "dropout: expected a number in [0, 1), got 1.0"),
    (dict(norm="batch"), "norm: expected one of layer, rms, got 'batch'"),
    (dict(layers=True), "layers: expected an integer from 1 to 10000, got True"),
    # one of each was made: Python ran out of memory
    (dict(layers=2**31), "layers: expected an integer from 1 to 10000, got 2147483648"),
    (dict(vocab_size=2**31), "vocab_size: expected an integer from 1 to 2^30, or None, got 21474"),
    (dict(mlp_width=-1), "mlp_width: expected an integer from 0 to 2^30, got -1"),
    (dict(head_width=0), "head_width: expected an integer from 1 to 2^30, or None, got 0"),
    (
        dict(head="token", pooling="none", head_width=8),
        "head_width: expected None with head='token', which is linear, got 8",
    ),
    (dict(head_dim=0), "head_dim: expected an integer from 1 to 2^30, or None, got 0"),
    (dict(norm_epsilon=0.0), "norm_epsilon: expected a number in (0, 1), got 0.0"),
    (dict(norm_epsilon=Fraction(1, 9)), "norm_epsilon: expected a number in (0, 1), got Fraction"),
    (dict(bias=1), "bias: expected True or False, got 1"),
    (dict(remat="yes"), "remat: expected True or False, got 'yes'"),
    (dict(dtype="int8"), "dtype: expected one of float32, bfloat16, float16, got 'int8'"),
]


@pytest.mark.parametrize(
    ("changes", "message"), MISTAKES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_mistake_is_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        config(**{"layers": 2, **changes})
    assert "\n" not in str(error.value)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ValueError, match=r"width: .*\nnorm: .*\ndropout: .*"):
        config(width=0, norm="batch", dropout=-1)


def test_unknown_field_is_refused():
    with pytest.raises(TypeError, match="widht"):
        config(widht=3)


@pytest.mark.parametrize("model", [Encoder, Decoder, DualEncoder, Seq2Seq])
def test_what_is_no_config_is_refused_by_name(model):
    with pytest.raises(TypeError, match=r"config: expected \w+Config\(...\), got dict"):
        model({"layers": 2}, key=jax.random.key(0))
    with pytest.raises(TypeError, match="source: expected EncoderConfig"):
        Seq2SeqConfig(source={"layers": 2}, target=config(head="token", pooling="none"))


def test_a_config_is_a_value():
    a, b = (config(layers=2, mechanism=(SOFTMAX, Toy())) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert dataclasses.replace(a, mechanism=SOFTMAX).mechanisms == (SOFTMAX, SOFTMAX)
    assert config(pooling="cls").positions_held == 8


def test_numbers_of_numpy_are_numbers_and_widen_nothing():
    rate = config(dropout=np.float32(0.25), norm_epsilon=np.float32(0.25)).dropout
    for one in (rate, np.float64(0.25)):
        kept = dropout(jnp.ones(8, jnp.bfloat16), one, jax.random.key(0))
        assert kept.dtype == jnp.bfloat16


def test_the_base_setting_is_the_papers():
    config = transformer_base(vocab_size=37000, max_length=512, classes=37000)
    sizes = (config.layers, config.width, config.heads, config.mlp_width, config.dropout)
    assert sizes == (6, 512, 8, 2048, 0.1)
    assert (config.norm_position, config.activation, config.positions) == (
        "post",
        "relu",
        "sinusoidal",
    )


def test_all_that_a_mechanism_asks_wrongly_is_named_at_once():
    class Wrong(Gated):
        short_conv = True
        bonus = float("nan")

    lines = [
        "mechanism: Wrong.short_conv: expected a number of taps, 0 for none, got True",
        "mechanism: Wrong.output_gate: expected 'silu' or 'sigmoid', or None, got 'tanh'",
        "mechanism: Wrong.bonus: expected a finite number, or None, got nan",
    ]
    with pytest.raises(ValueError, match=f"^{re.escape(chr(10).join(lines))}$"):
        config(mechanism=Wrong(), layers=2)
