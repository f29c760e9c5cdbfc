"""Hugging Face's BERT with the same weights; biases, the embedding's norm and epsilon elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, build, config, run

import attn
from attn.nn import LSTM, Decoder, Encoder, from_bert, with_kv_heads

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 11, (3, 9))
LENGTHS = np.array([9, 4, 1])


def theirs():
    torch = pytest.importorskip("torch", reason="torch is not installed (an optional extra)")
    hf = pytest.importorskip("transformers")
    sizes = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
    model = hf.BertModel(hf.BertConfig(vocab_size=11, max_position_embeddings=9, **sizes)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, x in model.named_parameters():  # norms and biases too, which start as constants
            x.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.02 if "embed" in name else 0.4)
    real = torch.tensor(np.arange(9) < LENGTHS[:, None])
    out = model(torch.tensor(TOKENS), attention_mask=real.long()).last_hidden_state
    return model.state_dict(), out.detach().numpy()


def ours(state, **changes):
    changes = {"heads": 2, "mechanism": SOFTMAX, **changes}
    return from_bert(state, classes=3, key=jax.random.key(0), **changes)


@pytest.mark.slow
def test_the_last_hidden_state_is_theirs_and_the_mechanism_can_be_another():
    state, want = theirs()
    got = run(ours(state), jnp.asarray(TOKENS), lengths=jnp.asarray(LENGTHS), method="features")
    real = np.arange(9) < LENGTHS[:, None]
    np.testing.assert_allclose(np.asarray(got)[real], want[real], rtol=2e-4, atol=2e-5)
    linear = ours(state, mechanism=attn.Linear(), pooling="max")
    assert np.isfinite(run(linear, jnp.asarray(TOKENS), lengths=jnp.asarray(LENGTHS))).all()


def state_of(**more):
    """Arrays under BERT's names, of one layer."""
    draw = lambda *shape: RNG.normal(size=shape).astype(np.float32)
    layer = "encoder.layer.0"
    linears = {f"{layer}.attention.self.{name}": (4, 4) for name in ("query", "key", "value")}
    linears[f"{layer}.attention.output.dense"] = (4, 4)
    linears |= {f"{layer}.intermediate.dense": (6, 4), f"{layer}.output.dense": (4, 6)}
    state = {f"{name}.weight": draw(*shape) for name, shape in linears.items()}
    state |= {f"{name}.bias": draw(shape[0]) for name, shape in linears.items()}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        state |= {f"{name}.LayerNorm.{what}": draw(4) for what in ("gamma", "beta")}
    for name, rows in (("word", 11), ("position", 9), ("token_type", 2)):
        state[f"embeddings.{name}_embeddings.weight"] = draw(rows, 4)
    return {f"bert.{name}": x for name, x in (state | more).items()}


def test_older_names_and_what_an_encoder_does_not_have():
    extra = {"pooler.dense.weight": np.ones((4, 4)), "embeddings.position_ids": np.arange(9)}
    state = state_of(**extra)
    state["cls.predictions.bias"] = np.ones(11)
    encoder = ours(state)
    block = encoder.stack.blocks[0]
    name = "bert.encoder.layer.0.output.LayerNorm.gamma"
    np.testing.assert_array_equal(block.mlp_norm.scale[...], state[name])


def test_an_array_under_its_older_and_its_newer_name_is_refused():
    state = state_of(**{"embeddings.LayerNorm.weight": np.ones(4)})
    with pytest.raises(ValueError, match=r"holds embeddings\.LayerNorm\.weight under two names"):
        ours(state)


def test_every_mistake_in_a_state_is_named_at_once():
    state = state_of(**{"encoder.layer.0.adapter.weight": np.ones(3)})
    del state["bert.embeddings.LayerNorm.beta"]
    state["bert.encoder.layer.0.output.dense.weight"] = np.ones((4, 5))
    state["bert.encoder.layer.0.attention.self.key.weight"] = np.ones((4, 4), np.int8)  # quantised
    with pytest.raises(ValueError, match="not a BERT") as error:
        ours(state)
    assert str(error.value).split("\n")[1:] == [
        "embeddings.LayerNorm.bias: expected an array [4], got none",
        "encoder.layer.0.adapter.weight: unknown array",
        "encoder.layer.0.attention.self.key.weight: expected an array of floats, got int8",
        "encoder.layer.0.output.dense.weight: expected an array [4, 6], got [4, 5]",
    ]
    with pytest.raises(
        ValueError, match=r"none of .* embeddings\.word_embeddings\.weight, emb.* only 'bert\.' may"
    ):
        ours({"model.layers.0.weight": np.ones(3)})
    with pytest.raises(TypeError, match=r"state: expected a dict of arrays, as model\.state_dict"):
        ours(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


def test_settings_that_the_state_decides_are_refused():
    for changes, named in (
        (dict(scan=True, width=8), "scan, width: the state decides"),
        (dict(pooling="cls"), "pooling: expected another"),
        (dict(mechanism=attn.Reformer(shared_qk=True)), "mechanism: expected one with q, k and v"),
        # by the config's words: "bias: LSTM has no heads, got True; leave it out", "set head_dim"
        (dict(mechanism=LSTM()), "mechanism: expected one with q, k and v of its own, got LSTM"),
        (dict(heads=3), r"heads: expected a divisor of the width 4, as embeddings\.word_.* got 3$"),
    ):
        with pytest.raises(ValueError, match=named):
            ours(state_of(), **changes)


FORM = dict(bias=True, embedding_norm=True, norm_epsilon=1e-3, activation="gelu_exact")


def moved(module):
    """With biases that are not 0."""
    move = lambda x: x + 0.1 * jax.random.normal(jax.random.key(3), x.shape)
    nnx.update(module, jax.tree.map(move, nnx.state(module)))
    return module


@pytest.mark.slow
def test_a_bias_is_a_row_more_of_the_kernel():
    """x W + b = [x 1] [W; b], for q, k, v and what goes back."""
    layer = moved(build(**FORM)).stack.blocks[0].attention
    x = jnp.asarray(RNG.normal(size=(2, 5, 12)), jnp.float32)
    q, k, v = jnp.split(x @ layer.qkv[...] + layer.bias.qkv[...], 3, -1)
    heads = lambda x: x.reshape(2, 5, 2, 6)
    y = SOFTMAX.reference(heads(q), heads(k), heads(v)).reshape(2, 5, 12)
    want = y @ layer.out[...] + layer.bias.out[...]
    np.testing.assert_allclose(run(layer, x), want, atol=1e-5)
    np.testing.assert_allclose(run(layer, x, context=x), want, atol=1e-5)


@pytest.mark.slow
def test_a_decoder_steps_with_biases_and_an_embedding_norm():
    fields = dict(head="token", pooling="none", classes=11, max_length=9, **FORM)
    model = moved(Decoder(config(**fields), key=jax.random.key(0)))
    graph, params = nnx.split(model)

    @jax.jit
    def go(params, tokens):
        model = nnx.merge(graph, params)
        state, first = model.prefill(tokens[:, :8])
        return model(tokens), first, model.step(state, tokens[:, 8])[1]

    whole, first, last = go(params, jnp.asarray(TOKENS))
    np.testing.assert_allclose(first, whole[:, 7], atol=2e-5)
    np.testing.assert_allclose(last, whole[:, 8], atol=2e-5)


@pytest.mark.slow
def test_biases_of_key_heads_are_pooled_with_their_kernels():
    old = moved(build(heads=4, head_dim=4, **FORM))
    for block in old.stack.blocks:  # equal heads, so pooling changes nothing
        for x in (block.attention.qkv, block.attention.bias.qkv):
            q, k, v = jnp.split(x[...].reshape(*x.shape[:-1], 12, 4), 3, axis=-2)
            same = lambda y: jnp.repeat(y[..., ::2, :], 2, axis=-2)
            x[...] = jnp.concatenate([q, same(k), same(v)], -2).reshape(x.shape)
    tokens = jnp.asarray(TOKENS[:, :6])
    want = run(old, tokens)
    np.testing.assert_allclose(run(with_kv_heads(old, 2), tokens), want, atol=2e-5)


def test_defaults_add_no_parameter():
    names = {"/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(build()))}
    assert not any("bias" in name and "attention/" in name for name in names)
    plain, more = (
        Encoder(config(**changes), key=jax.random.key(0)) for changes in ({}, {"bias": True})
    )
    np.testing.assert_array_equal(
        plain.stack.blocks[0].attention.qkv[...], more.stack.blocks[0].attention.qkv[...]
    )
