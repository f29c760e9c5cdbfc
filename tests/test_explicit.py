"""Arrays on `Explicit` mesh axes, the default of `jax.make_mesh`: every function takes them, and
its output lies as q does."""

import jax
import jax.numpy as jnp
import pytest
from four_devices import run_on_four_devices
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tiers import FEW, at_once

import attn
from attn import nn
from attn.testing.cases import base_mask, inputs

MESH = AbstractMesh((2, 2), ("rows", "heads"), axis_types=(AxisType.Explicit,) * 2)
LIES = P("rows", None, "heads")


def on(array, spec, mesh=MESH):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))


def given(mechanism, mesh=MESH):
    """q, k, v and learned arrays, of which per-token gates have rows."""
    *qkv, learned = inputs(mechanism, batch=(4,))
    heads = {"num_heads": qkv[0].shape[-2], "num_kv_heads": qkv[1].shape[-2]}
    gates = mechanism.gate_shapes(**heads, head_dim=qkv[0].shape[-1])
    place = lambda name: P("rows") if name in gates else P()
    learned = {name: on(x, place(name), mesh) for name, x in learned.items()}
    return *(on(x, LIES, mesh) for x in qkv), learned


@pytest.mark.parametrize("name", at_once(attn.MECHANISMS, FEW))
def test_outputs_and_gradients_lie_as_q_does(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    run = lambda q, k, v, learned: mechanism(q, k, v, mask=base_mask(mechanism), **learned)
    back = jax.grad(lambda *arrays: run(*arrays).sum(), argnums=(0, 1, 2))
    for function in (run, back):
        for x in jax.tree.leaves(jax.jit(function).trace(*given(mechanism)).out_info):
            assert x.sharding.spec == P("rows", None, "heads", None)


@pytest.mark.parametrize(
    "attend",
    [  # those that a record does not call
        lambda q, k, v: attn.window_attention(q, k, v, left=2, right=0),
        lambda q, k, v: attn.block_sparse_attention(q, k, v, pattern=attn.Window(1, 1)),
    ],
)
def test_functions_that_are_not_their_records(attend):
    q, k, v, _ = given(attn.Softmax())
    assert jax.jit(attend).trace(q, k, v).out_info.sharding.spec == P("rows", None, "heads", None)


def test_outputs_of_two_kinds():
    q, k, v, _ = given(attn.Softmax())
    run = lambda q, k, v: attn.dot_product_attention(q, k, v, return_lse=True)
    out, lse = jax.jit(run).trace(q, k, v).out_info
    assert out.sharding.spec == P("rows", None, "heads", None)
    assert lse.sharding.spec == LIES


@pytest.mark.parametrize("types", [("Explicit", "Auto"), ("Auto", "Explicit"), ("Auto", "Auto")])
def test_some_axes_may_be_auto(types):
    mesh = AbstractMesh(
        (2, 2), ("rows", "heads"), axis_types=tuple(map(AxisType.__getitem__, types))
    )
    places = []

    def run(q, k, v, learned):
        out = attn.gla_attention(q, k, v, mask=attn.Causal(), **learned)
        places.extend(jax.typeof(x).sharding.spec for x in (q, out))

    jax.jit(run).trace(*given(attn.GLA(), mesh))
    rows, heads = (name if type == "Explicit" else None for name, type in zip(LIES[::2], types))
    assert places == [P(rows, None, heads, None)] * 2


def test_masks_biases_and_keys_have_places_of_their_own():
    q, k, v, _ = given(attn.Softmax())
    lengths, ids = jnp.full(4, 9), jnp.zeros((4, q.shape[-3]), int)
    table, key = jnp.ones((32, 4)), jax.random.key(0)

    def run(q, k, v, lengths, ids, table, key):
        mask = attn.Padding(lengths) & attn.Segments(ids)
        options = {"dropout_rate": 0.5, "dropout_key": key}
        return attn.dot_product_attention(q, k, v, mask=mask, bias=attn.Relative(table), **options)

    more = on(lengths, P("rows")), on(ids, P("rows")), on(table, P(None, "heads")), on(key, P())
    assert jax.jit(run).trace(q, k, v, *more).out_info.sharding.spec == P(*LIES, None)


def test_a_query_that_lies_nowhere_is_whole():
    _, k, v, _ = given(attn.Softmax())
    run = lambda k, v: attn.dot_product_attention(jnp.ones(k.shape, k.dtype), k, v)
    assert jax.jit(run).trace(k, v).out_info.sharding.spec == P(None, None, None, None)


def test_transformations_around_it():
    q, *_ = given(attn.Linear())
    run = lambda q: attn.linear_attention(q, q, q, mask=attn.Causal())
    twice = lambda q: jax.lax.scan(lambda q, _: (run(q), None), q, length=2)[0]
    loss = jax.checkpoint(lambda q: twice(q).sum())
    for function in (jax.vmap(run), jax.grad(loss)):
        assert jax.jit(function).trace(q).out_info.sharding.spec == P(*LIES, None)


def test_errors_are_those_of_other_arrays():
    q, k, v, _ = given(attn.Softmax())
    with pytest.raises(ValueError, match=r"^k: expected .* to go with q"):
        jax.jit(lambda q, k, v: attn.dot_product_attention(q, k[..., :3], v)).trace(q, k, v)


ENCODERS = {
    "mean": {"mechanism": attn.Softmax(), "positions": "learned"},
    "cls": {"mechanism": attn.Softmax(), "pooling": "cls"},
    "last": {"mechanism": attn.RWKV7(), "pooling": "last", "scan": True},
    "token": {"mechanism": attn.MoBA(), "pooling": "none", "head": "token", "positions": "rotary"},
}


@pytest.mark.parametrize("name", at_once(ENCODERS, ["cls"]))
def test_encoders_are_trained_there(name):
    sizes = dict(vocab_size=11, max_length=16, classes=3, layers=2, width=16, heads=2, dropout=0.1)
    config = nn.EncoderConfig(**sizes, mlp_width=32, **ENCODERS[name])
    apply, params = nn.functional(nn.Encoder(config, key=jax.random.key(0)))
    mask = attn.Causal() if name in ("last", "token") else attn.masks.FULL

    def loss(params, tokens, lengths, key):
        scores = apply(params, tokens, mask=mask, lengths=lengths, dropout_key=key)
        return scores.mean(), scores

    given = jnp.ones((4, 12), int), jnp.full(4, 9)
    params = jax.tree.map(lambda x: on(x, P()), params)
    run = jax.jit(jax.grad(loss, has_aux=True))
    _, scores = run.trace(
        params, *(on(x, P("rows")) for x in given), on(jax.random.key(1), P())
    ).out_info
    assert scores.sharding.spec[0] == "rows"


PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import attn
from attn.testing.cases import base_mask, inputs

assert len(jax.devices()) == 4
mesh = jax.make_mesh((2, 2), ("rows", "heads"))
for name in sys.argv[1:]:
    mechanism = attn.MECHANISMS[name].examples()[0]
    *qkv, learned = inputs(mechanism, batch=(4,))
    def both(qkv, learned):
        run = lambda *qkv: mechanism(*qkv, mask=base_mask(mechanism), **learned)
        out, pull = jax.vjp(run, *qkv)
        return out, pull(out)
    lies = NamedSharding(mesh, P("rows", None, "heads"))
    there = jax.device_put(qkv, lies), jax.device_put(learned, NamedSharding(mesh, P()))
    want = both(qkv, learned)
    with jax.set_mesh(mesh):
        got = jax.jit(both)(*there)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())
    jax.tree.map(close, got, want)
    out = mechanism(*there[0], mask=base_mask(mechanism), **there[1])
    close(out, want[0])
    assert out.sharding.spec == P("rows", None, "heads", None), out.sharding
"""


@pytest.mark.slow
def test_numbers_are_those_of_one_device():
    run_on_four_devices(PROGRAM, "softmax", "gated_delta_net", "window", "nystrom")
