"""The layers of torch.nn.TransformerEncoder and of TransformerDecoder, post-norm and pre-norm, with
the same weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, run

from attn import Padding
from attn.nn import Encoder, transformer_base
from attn.nn.cross import CrossBlock

torch = pytest.importorskip("torch", reason="torch is not installed (an optional extra)")

SMALL = dict(width=16, heads=4, mlp_width=24, layers=2, dropout=0.0, mechanism=SOFTMAX)


class Layers(nnx.Module):
    """An encoder between its embedding and its head."""

    def __init__(self, encoder):
        self.stack, self.norm = encoder.stack, encoder.norm

    def __call__(self, x, mask):
        x = self.stack(x, mask=mask, bias=None, positions=None, dropout_key=None)
        return x if self.norm is None else self.norm(x)


def numbers(x):
    return jnp.asarray(x.detach().numpy())


def put(module, layer):
    """torch's weights [out, in] into ours [in, out]."""
    module.kernel[...], module.bias[...] = numbers(layer.weight).T, numbers(layer.bias)


def put_norm(norm, layer):
    norm.scale[...], norm.bias[...] = numbers(layer.weight), numbers(layer.bias)


def put_attention(attention, layer):
    attention.qkv[...] = numbers(layer.in_proj_weight).T
    attention.out[...] = numbers(layer.out_proj.weight).T


def load(ours, theirs):
    for block, layer in zip(ours.stack.blocks, theirs.layers):
        put_attention(block.attention, layer.self_attn)
        put(block.mlp.up, layer.linear1)
        put(block.mlp.down, layer.linear2)
        put_norm(block.attention_norm, layer.norm1)
        put_norm(block.mlp_norm, layer.norm2)
    if ours.norm is not None:
        put_norm(ours.norm, theirs.norm)


def draw(theirs):
    """Random weights, but no biases in the projections of attention, which ours have not."""
    with torch.no_grad():
        for name, x in theirs.named_parameters():
            x.normal_(0, 0.3) if "attn" not in name or x.ndim > 1 else x.zero_()


@pytest.mark.parametrize("where", ["post", "pre"])
def test_layers_equal_torchs_with_its_weights(where):
    config = transformer_base(vocab_size=5, max_length=9, classes=2, **SMALL)
    config = dataclasses.replace(config, norm_position=where)
    ours = Layers(Encoder(config, key=jax.random.key(0)))
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, batch_first=True, norm_first=where == "pre", layer_norm_eps=1e-6
    )
    final = torch.nn.LayerNorm(16, eps=1e-6) if where == "pre" else None
    theirs = torch.nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False)
    draw(theirs)
    load(ours, theirs)
    rng = np.random.default_rng(0)
    x, real = (
        rng.normal(size=(3, 9, 16)).astype(np.float32),
        np.arange(9) < np.array([[9], [4], [1]]),
    )
    got = run(ours, jnp.asarray(x), Padding(jnp.array([9, 4, 1])))
    want = theirs(torch.tensor(x), src_key_padding_mask=torch.tensor(~real)).detach().numpy()
    np.testing.assert_allclose(np.asarray(got)[real], want[real], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("where", ["post", "pre"])
def test_a_decoder_layer_equals_torchs_with_its_weights(where):
    config = transformer_base(vocab_size=5, max_length=6, classes=2, **SMALL)
    config = dataclasses.replace(config, norm_position=where, head="token", pooling="none")
    key = jax.random.key(0)
    ours = CrossBlock(config, SOFTMAX, cross=SOFTMAX, source_length=9, key=key)
    torch.manual_seed(0)
    theirs = torch.nn.TransformerDecoderLayer(
        16, 4, 24, 0.0, batch_first=True, norm_first=where == "pre", layer_norm_eps=1e-6
    )
    draw(theirs)
    put_attention(ours.own.attention, theirs.self_attn)
    put_attention(ours.cross, theirs.multihead_attn)
    put(ours.mlp.up, theirs.linear1)
    put(ours.mlp.down, theirs.linear2)
    norms = ours.own.attention_norm, ours.cross_norm, ours.mlp_norm
    for norm, layer in zip(norms, (theirs.norm1, theirs.norm2, theirs.norm3)):
        put_norm(norm, layer)
    rng = np.random.default_rng(0)
    x, source = (rng.normal(size=(3, n, 16)).astype(np.float32) for n in (6, 9))
    hidden = np.arange(9) >= np.array([[9], [4], [1]])
    given = dict(bias=None, positions=None, dropout_key=None)
    mask = Padding(jnp.array([9, 4, 1]))
    got = ours(jnp.asarray(x), source=jnp.asarray(source), mask=mask, **given)
    later = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    want = theirs(
        *map(torch.tensor, (x, source)),
        tgt_mask=later,
        memory_key_padding_mask=torch.tensor(hidden),
    )
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=2e-4, atol=2e-5)
