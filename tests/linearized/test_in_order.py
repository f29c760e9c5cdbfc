"""Keys and queries are put into one order, no longer than it must be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import attn
from attn import Causal, Segments
from attn.linearized import _attend
from attn.testing import inputs
from attn.testing.trying import compare, precise, with_gradients

T = 21
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, T)))  # not adjacent


@pytest.mark.parametrize(
    ("mask", "S", "length"),
    [
        (Causal(-3), T, T),
        (Causal(3), T, T + 3),  # the last 3 queries see all keys, beyond the last
        (Causal(), T + 4, T + 4),
        (Causal(4), T + 4, T + 4),
        (Causal(-T - 9), T, T),  # no query sees a key
        (Causal(T + 9), T, 2 * T),
        (Causal() & Segments(IDS, IDS), T, T),
        (Causal() & Segments(IDS, IDS + 0), T, 2 * T),  # they may differ
        (Causal(1) & Segments(IDS, IDS), T, 2 * T),
    ],
)
def test_one_sequence_is_no_longer_than_it_must_be(mask, S, length, replaced):
    lengths, scan = [], _attend.scan

    def heard(form, learned, state, tokens):
        lengths.append(tokens.seen.shape[-1])
        return scan(form, learned, state, tokens)

    replaced(_attend.attend, _attend, "scan", heard)
    q, k, v, gates = inputs(attn.GLA(), T=T, S=S)
    jax.eval_shape(lambda: attn.GLA()(q, k, v, mask=mask, **gates))
    assert lengths == [length]


@pytest.mark.parametrize("given", [np.asarray(IDS), IDS, IDS.astype(jnp.int8)])
def test_one_array_given_twice_is_one(given):
    assert Segments(given, given) == Segments(given)
    assert Segments(given).key_ids is None
    np.testing.assert_array_equal(
        Segments(given).array(T, T), Segments(given, given + 0).array(T, T)
    )


@pytest.mark.slow
@pytest.mark.parametrize("ids", [IDS, jnp.sort(IDS)], ids=["mixed", "packed"])
@pytest.mark.parametrize("name", ["linear", "gla", "delta_net", "rwkv6", "efficient"])
def test_documents_of_queries_that_are_keys_equal_the_definition(name, ids):
    mechanism = attn.MECHANISMS[name].examples()[0]
    arrays = inputs(mechanism, T=T, S=T)
    padding = attn.Padding(jnp.array([T, T - 6]))
    causal = Causal() & Segments(ids, ids) & padding
    masks = causal, *([] if Causal in mechanism.requires else [Segments(ids, ids) & padding])
    run = jax.jit(with_gradients(mechanism))
    with precise():
        for mask in masks:
            compare(mechanism, run, arrays, mask, None, dtype=jnp.float32, what=f"{mask}")


@pytest.mark.slow
def test_documents_run_under_shard_map_and_vmap():
    q, k, v, gates = inputs(attn.GLA(), T=T, S=T)

    def call(q, k, v, gates, ids):
        mask = Causal() & Segments(ids, ids)
        return attn.GLA()(q, k, v, mask=mask, **gates)

    grad = jax.grad(lambda *x: (call(*x) ** 2).sum(), argnums=(0, 3))
    mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = PartitionSpec("b")
    for f in (call, grad):
        want = jax.jit(f)(q, k, v, gates, IDS)
        sharded = jax.shard_map(f, mesh=mesh, in_specs=(specs,) * 5, out_specs=specs)
        for got in (jax.jit(sharded)(q, k, v, gates, IDS), jax.vmap(f)(q, k, v, gates, IDS)):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), want, got
            )
