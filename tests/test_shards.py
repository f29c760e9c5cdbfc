"""Where a batch lies on several devices, each computes its share: XLA has nothing to bring from one
to another, and the numbers are those of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from four_devices import run_on_four_devices
from tiers import at_once

import attn
from attn import Causal, Padding, Segments, _blockwise
from attn.testing import inputs

B, T = 4, 45
BIASES = {
    "none": None,
    "t5": attn.Relative(jnp.asarray(np.random.default_rng(5).normal(size=(32, 4)), jnp.float32)),
    "array": attn.ArrayBias(jnp.asarray(np.random.default_rng(5).normal(size=(B, 4, T, T)))),
    "shared": attn.ArrayBias(jnp.asarray(np.random.default_rng(5).normal(size=(1, 4, 1, T)))),
}
DOCUMENTS = Segments(jnp.arange(T) // jnp.array([[9], [45], [7], [1]]))
MASK = Causal() & Padding(jnp.array([45, 20, 0, 33])) & DOCUMENTS


def both(call, monkeypatch):
    """What `call()` gives for the whole batch, and for rows that may be on two devices."""
    whole = call()
    monkeypatch.setattr(_blockwise, "shares", lambda B: 2)
    return whole, call()


def same(whole, shared):
    for want, got in zip(*map(jax.tree.leaves, (whole, shared)), strict=True):
        size = max(1, np.abs(np.where(np.isfinite(want), want, 0)).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * size)


@pytest.mark.parametrize("block", at_once([8, None], [8]))
@pytest.mark.parametrize("name", at_once(BIASES, ["t5"]))
def test_shares_of_rows_are_the_rows(name, block, monkeypatch):
    q, k, v, _ = inputs(attn.Softmax(), batch=(B,), T=T, S=T)

    def loss(q, k, v, bias):
        options = dict(dropout_rate=0.3, dropout_key=jax.random.key(1), return_lse=True)
        options |= dict(implementation="blockwise", block=block)
        out, lse = attn.dot_product_attention(q, k, v, mask=MASK, bias=bias, **options)
        return (out**2).sum() + jnp.where(lse > -jnp.inf, lse, 0).sum(), (out, lse)

    def call():
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
        return gradients(q, k, v, BIASES[name])

    same(*both(call, monkeypatch))


@pytest.mark.slow
def test_the_bias_of_forget_gates_has_rows(monkeypatch):
    mechanism = attn.Forgetting(block=8)
    *qkv, gates = inputs(mechanism, batch=(B,), T=T, S=T)
    loss = lambda qkv, gates: (mechanism(*qkv, mask=MASK, **gates) ** 2).sum()
    same(*both(lambda: jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(qkv, gates), monkeypatch))


def test_shares_under_vmap_and_out_of_jit(monkeypatch):
    q, k, v, _ = inputs(attn.Softmax(), batch=(B,), T=T, S=T)
    run = functools.partial(attn.dot_product_attention, implementation="blockwise")
    stacked = [jnp.stack([x, -x]) for x in (q, k, v)]
    call = lambda: (run(q, k, v, mask=MASK), jax.vmap(run)(*stacked))
    same(*both(call, monkeypatch))


PROGRAM = """
import re, sys
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import attn

assert len(jax.devices()) == 4
mesh = jax.make_mesh((2, 2), ("rows", "heads"), (AxisType.Auto,) * 2)
moves = re.compile("all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter")
x = jax.ShapeDtypeStruct((4, 600, 2, 8), jnp.float32)
for name in sys.argv[1:]:
    mechanism = attn.MECHANISMS[name]()
    gates = mechanism.gate_shapes(num_heads=2, num_kv_heads=2, head_dim=8)
    gates = {n: jax.ShapeDtypeStruct((4, 600, *shape), jnp.float32) for n, shape in gates.items()}
    learn = lambda: mechanism.init(
        jax.random.key(0), num_heads=2, num_kv_heads=2, head_dim=8, value_dim=8, max_length=600
    )
    spec = lambda *axes: NamedSharding(mesh, P(*axes))
    for one in (spec("rows"), spec(("rows", "heads"))):
        given = ((one,) * 3, one, spec())
        def back(qkv, gates, learned):
            run = lambda *qkv: mechanism(*qkv, mask=attn.Causal(), **gates, **learned)
            out, pull = jax.vjp(run, *qkv)
            return out, pull(out)
        program = jax.jit(back, in_shardings=given).lower((x,) * 3, gates, jax.eval_shape(learn))
        found = set(moves.findall(program.compile().as_text()))
        assert not found, (name, one.spec, found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("names", ["softmax window", "linear gla"])
def test_nothing_is_brought_from_one_device_to_another(names):
    run_on_four_devices(PROGRAM, *names.split())
