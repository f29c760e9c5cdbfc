"""Layers and models inside `jax.shard_map` over the batch are what they are outside."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec
from tiers import ENGINES, FEW
from toy_mechanism import config

import attn
from attn.nn import (
    LSTMN,
    MIXERS,
    Bahdanau,
    Decoder,
    Encoder,
    LSTMNSeq2Seq,
    LuongSeq2Seq,
    Seq2Seq,
    Seq2SeqConfig,
)
from attn.testing.cases import base_mask, inputs

KEY = jax.random.key(0)
TINY = {"T": 5, "S": 5, "H": 4, "D": 4}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 5)), jnp.int32)
EACH = PartitionSpec("b")
SIZES = dict(vocab_size=11, classes=11, width=8, key=KEY)
LM = dict(head="token", pooling="none", classes=11)
READERS = {
    "bahdanau": lambda: Bahdanau(**SIZES),
    "luong": lambda: LuongSeq2Seq(**SIZES),
    "lstmn": lambda: LSTMNSeq2Seq(**SIZES, max_length=6),
    "seq2seq": lambda: Seq2Seq(Seq2SeqConfig(source=config(**LM), target=config(**LM)), key=KEY),
}


def alike(function, *arrays, specs=None) -> None:
    """On a mesh of one device, of which shard_map asks what it asks of many."""
    mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = specs or (EACH,) * len(arrays)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=EACH)
    want, got = jax.jit(function)(*arrays), jax.jit(sharded)(*arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), want, got)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_mixers_and_their_gradients(name):
    for mixer in MIXERS[name].examples():
        layer = mixer.layer(8, dtype=jnp.float32, key=KEY)
        graph, params = nnx.split(layer)
        x = jax.random.normal(KEY, (2, 5, 8))

        def of(params, x, graph=graph):
            loss = lambda params, x: (nnx.merge(graph, params)(x) ** 2).sum()
            return nnx.merge(graph, params)(x), jax.grad(loss, 1)(params, x)

        alike(of, params, x, specs=(PartitionSpec(), EACH))


@pytest.mark.parametrize("layer", ["lstm", "gru", "average", "softmax", "delta_net"])
def test_an_encoder_of(layer):
    mechanism = {**MIXERS, **attn.MECHANISMS}[layer]()
    encoder = Encoder(config(mechanism=mechanism, **LM), key=KEY)
    mask = attn.Causal() if layer == "delta_net" else attn.FULL
    alike(lambda x: encoder(x, mask=mask), TOKENS)


def test_the_tape_of_an_lstmn():
    alike(LSTMN(8, key=KEY), jax.random.normal(KEY, (2, 5, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_from_one_sequence_to_another(name):
    model = READERS[name]()
    lengths = jnp.array([5, 3])
    alike(lambda x, n: model(x, x, lengths=n), TOKENS, lengths)
    alike(lambda x, n: model.greedy(x, 3, lengths=n), TOKENS, lengths)
    alike(lambda x, n: model.beam(x, 3, width=2, end=1, lengths=n), TOKENS, lengths)


@pytest.mark.slow
def test_a_decoder_that_writes():
    decoder = Decoder(config(mechanism=attn.Softmax(), **LM), key=KEY)
    alike(lambda x: decoder.generate(x[:, :2], 2, temperature=0.0), TOKENS)


VARYING = [(name, varies) for name in attn.MECHANISMS for varies in range(3)]


def when(name, varies):
    """The values of a few at once; of all in CI, and q and k of one of each engine."""
    if name in FEW and varies == 2:
        return []
    return pytest.mark.slow if name in ENGINES or varies == 2 else pytest.mark.thorough


@pytest.mark.parametrize(("name", "varies"), [pytest.param(*x, marks=when(*x)) for x in VARYING])
def test_what_all_shards_share_may_be_any_of_q_k_and_v(name, varies):
    """Learned queries, or a memory that is common to the batch; and their gradients."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    *qkv, learned = inputs(mechanism, **TINY)
    specs = [PartitionSpec()] * 3
    specs[varies] = EACH
    mask = base_mask(mechanism)

    def of(*qkv):
        call = lambda *qkv: mechanism(*qkv, mask=mask, **learned)
        return call(*qkv), jax.grad(lambda *qkv: (call(*qkv) ** 2).sum(), (0, 1, 2))(*qkv)

    mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = tuple(specs)
    sharded = jax.shard_map(of, mesh=mesh, in_specs=specs, out_specs=(EACH, specs))
    assert jax.eval_shape(sharded, *qkv) == jax.eval_shape(of, *qkv)


TWO = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import attn
from attn.nn import LSTM
q, k, v = jax.random.normal(jax.random.key(0), (3, 4, 40, 2, 8))
k, v = k[:1], v[:1]  # a memory that is common to the batch
mesh = jax.make_mesh((2,), ("b",), axis_types=(AxisType.Auto,))
for name in ("softmax", "linear", "luna"):
    m = attn.MECHANISMS[name]()
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=8, value_dim=8, max_length=40)
    learned = m.init(jax.random.key(1), **sizes)
    def of(q, k, v):
        wide = lambda x: jnp.broadcast_to(x, (len(q), *x.shape[1:]))
        out = lambda q, k, v: m(q, wide(k), wide(v), mask=attn.Causal(), **learned)
        return out(q, k, v), jax.grad(lambda *x: (out(*x) ** 2).sum(), (0, 1, 2))(q, k, v)
    specs = P("b"), P(), P()
    two = jax.shard_map(of, mesh=mesh, in_specs=specs, out_specs=(P("b"), specs))
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(near, jax.jit(two)(q, k, v), jax.jit(of)(q, k, v))
layer = LSTM().layer(16, dtype=jnp.float32, key=jax.random.key(2))
x = q.reshape(4, 40, 16)
near(jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=P("b"), out_specs=P("b")))(x), layer(x))
"""


@pytest.mark.slow
def test_two_devices_sum_the_gradients_of_what_they_share():
    flags = "--xla_force_host_platform_device_count=2"
    told = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", TWO], check=True, env=told)
