"""Deeper layers take a share of the first layer's values, in every form of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiers import at_once
from toy_mechanism import SOFTMAX, jit, run

from attn import RWKV7, Causal, Softmax
from attn.gates import Gate, Named
from attn.nn import Attention, Decoder, EncoderConfig, Seq2Seq, Seq2SeqConfig
from attn.nn.mixers import LSTM

RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 11, (2, 6)), jnp.int32)
FORMS = [{}, {"scan": True}, {"scan": True, "tied": True}, {"remat": True}]
HYBRID = {"mechanism": (LSTM(), RWKV7(chunk=4), SOFTMAX, RWKV7(chunk=4)), "layers": 4}
NEAR = dict(rtol=2e-5, atol=2e-5)


def config(**changes):
    sizes = dict(vocab_size=11, classes=11, max_length=6, width=12, heads=2, mlp_width=8)
    kind = dict(mechanism=RWKV7(chunk=4), layers=3, head="token", pooling="none")
    return EncoderConfig(**{**sizes, **kind, **changes})


def drawn(model):
    """Away from where training starts, where the low ranks of all gates are 0."""
    graph, params = nnx.split(model)
    draw = lambda x: jnp.asarray(RNG.normal(size=x.shape) * 0.5, x.dtype)
    return nnx.merge(graph, jax.tree.map(draw, params))


def by_hand(stack, x, first):
    """Each block with the values of block `first`, for those after it."""
    values = None
    for i, block in enumerate(stack.blocks):
        values = block.values(x, mask=Causal()) if i == first else values
        context = dict(mask=Causal(), bias=None, positions=None, dropout_key=None)
        x = block(x, **context, first_values=values)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("changes", [*FORMS, HYBRID], ids=["loop", "scan", "tied", "remat", "mix"])
def test_a_stack_hands_on_the_values_of_the_first_layer_that_asks(changes):
    model = drawn(Decoder(config(**changes), key=jax.random.key(0)))
    stack, first = model.encoder.stack, 1 if changes is HYBRID else 0
    looped = stack.looped()
    x = jnp.asarray(RNG.normal(size=(2, 6, 12)), jnp.float32)
    context = dict(mask=Causal(), bias=None, positions=None, dropout_key=None)
    want, alone = (jit(lambda x, i=i: by_hand(looped, x, i))(x) for i in (first, None))
    np.testing.assert_allclose(run(stack, x, **context), want, **NEAR)
    assert not np.allclose(want, alone, atol=1e-3)
    # what a layer is looked at with is what it is called with
    see = lambda layer, x, *, first_values=None, **_: first_values
    plain = dict(mask=Causal(), bias=None, positions=None)
    seen = jit(lambda x: stack.look(x, see, **plain))(x)
    assert [s is None for s in seen] == [layer.attention.blend is None for layer in looped.blocks]


@pytest.mark.parametrize(
    "changes", at_once([*FORMS[:3], HYBRID], FORMS[1:2]), ids=["loop", "scan", "tied", "mix"]
)
def test_a_decoder_goes_on_token_by_token(changes):
    model = drawn(Decoder(config(**changes), key=jax.random.key(0)))
    whole = run(model, TOKENS)
    state, scores = run(model, TOKENS[:, :4], method="prefill")
    np.testing.assert_allclose(scores, whole[:, 3], **NEAR)
    for t in (4, 5):
        state, scores = run(model, state, TOKENS[:, t], method="step")
        np.testing.assert_allclose(scores, whole[:, t], **NEAR)


class Blending(Softmax):
    def blending(self, *, num_kv_heads, head_dim):
        return Gate(shape=(num_kv_heads, head_dim), activation=Named("sigmoid"))


def test_the_values_of_a_context_take_shares_by_its_own_tokens():
    """The tokens that ask, of which there are others and fewer, said how much."""
    made = Attention(12, num_heads=2, mechanism=Blending(), max_length=6, key=jax.random.key(0))
    x, first = (jnp.asarray(RNG.normal(size=(2, 6, *w)), jnp.float32) for w in ((12,), (2, 6)))
    whole = run(made, x, first_values=first)
    some = run(made, x[:, :4], context=x, first_values=first)
    np.testing.assert_allclose(some, whole[:, :4], **NEAR)


def test_a_layer_that_takes_no_share_refuses_first_values():
    layer = Attention(4, num_heads=1, mechanism=Softmax(), max_length=6, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"^first_values: expected None with Softmax, .*\[5\]"):
        layer(jnp.ones((1, 3, 4)), first_values=jnp.ones(5))


def test_tokens_of_another_batch_are_refused_by_name():
    """The first layer's values come before its step, which refuses: jax blamed a subtraction."""
    decoder = Decoder(config(), key=jax.random.key(0))
    state, _ = jax.eval_shape(decoder.prefill, TOKENS)
    with pytest.raises(ValueError, match=r"^x: expected \[2, 1, 12\] to go with state, got \[3, 1"):
        jax.eval_shape(decoder.step, state, jnp.zeros(3, int))


@pytest.mark.slow
def test_a_decoder_that_looks_at_a_source_hands_them_on_too():
    source = config(mechanism=SOFTMAX, layers=1)
    model = Seq2Seq(
        Seq2SeqConfig(source=source, target=config(layers=2), bos=1), key=jax.random.key(0)
    )
    model = drawn(model)
    whole = run(model, TOKENS, TOKENS)
    state, scores = run(model, TOKENS, TOKENS[:, :5], method="prefill")
    np.testing.assert_allclose(scores, whole[:, 4], **NEAR)
    _, scores = run(model, state, TOKENS[:, 5], method="step")
    np.testing.assert_allclose(scores, whole[:, 5], **NEAR)
    model.stack.blocks[1].attention.blend.projections["v"]["bias"][...] -= 9
    assert not np.allclose(run(model, TOKENS, TOKENS), whole, atol=1e-3)
