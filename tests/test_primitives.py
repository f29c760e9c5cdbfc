"""Primitives under odd shapes, odd numbers, odd settings of jax and Python, and many threads.

A few stand for the engines: softmax by blocks, one with a bias, states, pieces that are merged,
features, fewer keys.
"""

import ast
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import re
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from tiers import FEW, at_once, in_ci

import attn
from attn._integers import check_integers
from attn.masks import FULL, Causal, Padding
from attn.testing.cases import base_mask, inputs, masks_for, widen
from attn.testing.contract import assert_close, assert_same_bits
from attn.testing.guarantees import COLUMNS, verdict

ROOT = pathlib.Path(__file__).parent.parent
TINY = {"T": 9, "S": 9, "H": 4, "D": 3}
SOFTMAX = attn.Softmax(implementation="blockwise", block=4)


def definition(mechanism, arrays, mask):
    with jax.enable_x64(True):
        q, k, v, learned = widen(arrays)
        return np.asarray(mechanism.reference(q, k, v, mask=mask, **learned))


@functools.cache
def jitted(mechanism):
    """One for all examples, so that equal shapes are compiled once."""
    return jax.jit(mechanism)


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(SOFTMAX, marks=pytest.mark.slow),
        pytest.param(attn.GatedDeltaNet(chunk=2), marks=pytest.mark.slow),
        pytest.param(attn.Linear(chunk=2), marks=pytest.mark.thorough),
        pytest.param(attn.Linformer(features=2), marks=pytest.mark.thorough),
    ],
    ids=lambda m: m.name,
)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    lengths=st.sampled_from([(0, 1), (1, 0), (1, 1), (5, 1), (5, 5)]),
    heads=st.sampled_from([(1, 1), (2, 1)]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    causal=st.booleans(),
    seen=st.sampled_from([None, (0, 5), (1, 2)]),
    seed=st.integers(0, 9),
)
def test_any_small_shape_mask_and_dtype(mechanism, lengths, heads, dtype, causal, seen, seed):
    (T, S), (N, K) = lengths, heads
    mask = base_mask(mechanism)
    mask = mask & Causal() if causal and Causal in mechanism.honours else mask
    mask = mask if seen is None else mask & Padding(jnp.minimum(jnp.array(seen), S))
    shape = {"T": T, "S": S, "N": N, "K": K, "H": 4, "D": 3}
    q, k, v, learned = inputs(mechanism, dtype=jnp.dtype(dtype), seed=seed, **shape)
    out = jitted(mechanism)(q, k, v, mask=mask, **learned)
    assert (out.dtype, out.shape) == (q.dtype, (2, T, N, 3))
    want = definition(mechanism, (q, k, v, learned), mask)
    assert_close(out, want, dtype=out.dtype, what=mechanism.name, room=mechanism.room)


EXTREME = [
    pytest.param(attn.Softmax(implementation="materialized"), marks=pytest.mark.thorough),
    pytest.param(SOFTMAX, marks=pytest.mark.slow),
    pytest.param(attn.SlidingWindow(left=3, right=2, block=8), marks=pytest.mark.slow),
    pytest.param(attn.Sigmoid(), marks=pytest.mark.thorough),
    pytest.param(attn.StridedPattern(stride=4, block=8), marks=pytest.mark.thorough),
    pytest.param(attn.TopK(keys=4), marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("mechanism", EXTREME, ids=repr)
def test_logits_of_ten_thousand(mechanism):
    # whole numbers, so that every score is exact: up to 1e4 either way, and ties among them
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.integers(-71, 72, shape), jnp.float32)
    q, k = draw(2, 9, 4, 4).at[..., 1:].set(0) * 4, draw(2, 9, 2, 4)
    q, k = q.at[0, 0].set(142.0), k.at[0, :2].set(71.0).at[0, 2].set(-71.0)
    scores = np.asarray(q[0, 0, 0] @ k[0, :3, 0].T) / 2
    assert scores.tolist() == [20164, 20164, -20164]
    v = jnp.asarray(rng.normal(size=(2, 9, 2, 3)), jnp.float32)
    loss = lambda *qkv: (mechanism(*qkv) ** 2).sum()
    with jax.default_matmul_precision("highest"):
        out = jax.jit(mechanism)(q, k, v)
        gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)
    want = definition(mechanism, (q, k, v, {}), FULL)
    assert_close(out, want, dtype=out.dtype, what="scores up to 2e4", room=mechanism.room)
    assert all(np.isfinite(x).all() for x in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [SOFTMAX, attn.Linear(chunk=4), attn.Nystrom(landmarks=4)])
def test_subnormal_numbers_are_as_good_as_zero(mechanism):
    q, k, v, _ = inputs(mechanism, **TINY)
    call, tiny = jax.jit(mechanism), 1e-40
    nothing = call(0 * q, 0 * k, v)
    assert_close(call(tiny * q, tiny * k, v), nothing, dtype=v.dtype, what="subnormal scores")
    least = float(np.finfo(np.float32).tiny)
    assert (np.abs(call(q, k, tiny * v)) <= 10 * least).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [SOFTMAX, attn.GatedDeltaNet(chunk=4), attn.StridedPattern(), attn.Reformer(buckets=4)],
    ids=lambda m: m.name,
)
def test_eight_threads_get_the_bits_of_one(mechanism):
    q, k, v, learned = inputs(mechanism, **TINY)
    mask = base_mask(mechanism)
    make = lambda: jax.jit(lambda q: mechanism(q, k, v, mask=mask, **learned))
    shared, alone, start = make(), make(), threading.Barrier(8)
    found = {}

    def work(n):
        start.wait(60)  # none has been compiled yet
        found[n] = [np.asarray(shared(q * (n + 1 + i))) for i in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert sorted(found) == list(range(8))
    for n, outs in found.items():
        for i, out in enumerate(outs):
            assert_same_bits(out, alone(q * (n + 1 + i)), what=f"thread {n}, call {i}")


@pytest.mark.parametrize("name", in_ci(attn.MECHANISMS, ("softmax", "kda", "strided", "nystrom")))
def test_traced_under_strict_promotions_it_leaks_no_tracer(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    named = masks_for(mechanism, T=9, S=9)
    mask = named.get("all joined", named.get("Padding", base_mask(mechanism)))
    q, k, v, learned = inputs(mechanism, dtype=jnp.bfloat16, **TINY)
    loss = lambda q, k, v: mechanism(q, k, v, mask=mask, **learned).sum()
    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    with strict[0], strict[1], jax.checking_leaks():
        found = jax.eval_shape(jax.value_and_grad(loss, (0, 1, 2)), q, k, v)
    assert {x.dtype for x in jax.tree.leaves(found)} == {q.dtype}


# how much these do at once depends on the batch
BATCH_IS_KNOWN = (
    *("additive", "luong", "sigmoid", "synthesizer", "linformer"),
    *("reformer", "sinkhorn", "topk", "moba", "quest", "nsa"),
)


@pytest.mark.parametrize(
    "name", in_ci(sorted(attn.MECHANISMS.keys() - BATCH_IS_KNOWN), ("softmax", "kda", "bigbird"))
)
def test_it_is_exported_for_any_batch(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    gates = mechanism.gate_shapes(num_heads=4, num_kv_heads=2, head_dim=4)
    call = jax.jit(functools.partial(mechanism, mask=base_mask(mechanism)))
    (b,) = jax.export.symbolic_shape("b")
    any_batch = lambda x: jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype)
    shapes = {name: any_batch(x) if name in gates else x for name, x in learned.items()}
    exported = jax.export.export(call)(*map(any_batch, (q, k, v)), **shapes)
    out, want = exported.call(q, k, v, **learned), call(q, k, v, **learned)
    assert_close(out, want, dtype=out.dtype, what=name, room=mechanism.room)


@pytest.mark.parametrize("implementation", ["materialized", "blockwise"])
def test_so_it_is_with_arrays_in_a_mask(implementation):
    q = jax.random.normal(jax.random.key(0), (3, 9, 2, 4))
    lengths, attend = jnp.array([9, 0, 4]), attn.Softmax(implementation=implementation)
    call = jax.jit(lambda q, lengths: attend(q, q, q, mask=attn.Padding(lengths)))
    (b,) = jax.export.symbolic_shape("b")
    any_batch = lambda x: jax.ShapeDtypeStruct((b, *x.shape[1:]), x.dtype)
    exported = jax.export.export(call)(any_batch(q), any_batch(lengths))
    assert jnp.array_equal(exported.call(q, lengths), call(q, lengths))


def test_the_page_on_guarantees_counts_what_is_exported_for_any_batch():
    text = (pathlib.Path(__file__).parent.parent / "docs/guarantees.md").read_text()
    told = re.search(r"first examples of (\d+)\s+mechanisms.*?\)\. (.*?) choose", text, re.S)
    assert int(told[1]) == len(attn.MECHANISMS) - len(BATCH_IS_KNOWN)
    assert set(re.findall(r"`(\w+)`", told[2])) == set(BATCH_IS_KNOWN)


@pytest.mark.parametrize("name", at_once(attn.MECHANISMS))
def test_a_length_left_open_by_export_is_refused_by_name(name):
    """jax said, in terms of its own, that it does not know how t compares with a number."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    gates = mechanism.gate_shapes(num_heads=4, num_kv_heads=2, head_dim=4)
    (t,) = jax.export.symbolic_shape("t")
    any_length = lambda x: jax.ShapeDtypeStruct((x.shape[0], t, *x.shape[2:]), x.dtype)
    shapes = {name: any_length(x) if name in gates else x for name, x in learned.items()}
    for f in (mechanism, mechanism.reference):
        call = jax.jit(functools.partial(f, mask=base_mask(mechanism)))
        with pytest.raises(ValueError, match=r"^q: expected a known length, got \[2, t, 4, 4\]"):
            jax.export.export(call)(*map(any_length, (q, k, v)), **shapes)


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_a_narrow_state_is_made_under_strict_promotions(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=4, value_dim=4, max_length=16)
    with jax.numpy_dtype_promotion("strict"), contextlib.suppress(NotImplementedError):
        state = jax.eval_shape(lambda: mechanism.init_state((3,), **sizes, dtype="bfloat16"))
        assert jax.tree.leaves(state)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "name",
    in_ci(
        ("softmax", "forgetting", "gated_delta_net", "strided", "performer"),
        ("softmax", "gated_delta_net"),
    ),
)
def test_no_nan_is_made_on_the_way(name):
    mechanism = SOFTMAX if name == "softmax" else attn.MECHANISMS[name]()
    # a batch row that sees nothing, where 0 / 0 and -inf - -inf would be
    mask = base_mask(mechanism) & Padding(jnp.array([0, 5]))
    q, k, v, learned = inputs(mechanism, **TINY)
    loss = lambda q, k, v: (mechanism(q, k, v, mask=mask, **learned) ** 2).sum()
    with jax.debug_nans(True):
        mechanism(q, k, v, mask=mask, **learned)  # operation by operation
        with jax.debug_infs(True):  # of what jit returns: hidden scores are -inf on the way
            jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)


@pytest.mark.parametrize("name", in_ci(attn.MECHANISMS, ("softmax", "linear")))
def test_float8_is_computed_wider_and_rounded_at_the_end(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    q, k, v = (x.astype(jnp.float8_e4m3fn) for x in (q, k, v))
    out = mechanism(q, k, v, mask=base_mask(mechanism), **learned)
    assert out.dtype == q.dtype
    want = definition(mechanism, (q, k, v, learned), base_mask(mechanism))
    error = np.square(np.asarray(out, float) - want).mean() / np.square(want).mean()
    assert np.sqrt(error) < 0.6 * 2**-3  # of its eps, as bfloat16 is allowed


def test_no_assert_carries_a_check():
    """`python -O` leaves them out."""
    for path in sorted((ROOT / "attn").rglob("*.py")) + sorted(
        (ROOT / "experiments").rglob("*.py")
    ):
        found = [
            n.lineno for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)
        ]
        assert not found, f"{path}: {found}"


@pytest.mark.parametrize("name", attn.MECHANISMS)
@pytest.mark.filterwarnings("error")
def test_numpy_arrays_of_float64_give_float32_without_a_warning(name):
    """jax warns of a float64 that is asked for by name; of no keys, 0 was, and more by two."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    S = 9 if name in ("abc", "luna") else 0
    arrays = jax.tree.map(np.float64, inputs(mechanism, **{**TINY, "S": S}))
    mask = Causal() if Causal in mechanism.honours else FULL
    out = jax.eval_shape(lambda: mechanism(*arrays[:3], mask=mask, **arrays[3]))
    assert (out.shape, out.dtype) == ((2, 9, 4, 3), jnp.float32)


@pytest.mark.parametrize("name", ["moba", "nsa", "quest", "luna", "abc"])
def test_a_query_before_all_keys_is_0_be_it_nan(name):
    """As its definition has it, and every other mechanism: left padding may hold anything."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    there = np.arange(9) > 1
    mask = Causal() & Padding(keys=jnp.broadcast_to(there, (2, 9)))
    call = jax.jit(lambda q: mechanism(q, k, v, mask=mask, **learned))
    dirty, clean = call(jnp.where(there[:, None, None], q, jnp.nan)), call(q)
    assert (dirty[:, :2] == 0).all()
    np.testing.assert_array_equal(dirty, clean)


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_what_is_seen_and_not_finite_is_not_swallowed(name):
    """Inputs are cleaned of what is hidden, so each variant puts back what its queries saw: a
    mutant of `sinkhorn` that did not passed all laws."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    call = jax.jit(lambda *x: mechanism(*x, mask=base_mask(mechanism), **learned))
    for at, bad in itertools.product(range(3), (np.nan, np.inf)):
        arrays = [q, k, v]
        arrays[at] = arrays[at].at[0, 4, 1, 1].set(bad)
        lost = ~np.isfinite(call(*arrays)).all(-1)
        assert not lost[1].any(), "another batch row"
        if (name, at) == ("synthesizer", 1):  # has no use for keys
            assert not lost.any()
        elif (name, at) == ("reformer", 1):  # its own query may be in another bucket
            assert lost.any()
        else:
            assert lost[0, 4].any(), f"{bad} in {'qkv'[at]}"


@pytest.mark.parametrize("name", ["moba", "nsa", "quest"])
def test_nor_is_a_query_that_sees_the_first_block_alone(name):
    """Of blocks with padding it is looked up which hold a key that it sees."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    mask = attn.Causal() & attn.Padding(jnp.array([3, 2]))
    call = jax.jit(lambda q: mechanism(q, k, v, mask=mask, **learned))
    lost = np.isnan(call(q.at[:, 1].set(jnp.nan))).all((-2, -1))
    np.testing.assert_array_equal(lost, np.broadcast_to(np.arange(lost.shape[1]) == 1, lost.shape))


@pytest.mark.slow
def test_without_asserts_and_with_warnings_as_errors_refusals_are_the_same():
    program = """
import jax.numpy as jnp
import attn
q = jnp.ones((1, 3, 2, 4))
out = attn.dot_product_attention(q, q, q, mask=attn.Causal() & attn.Padding(jnp.array([2])))
print(out.shape, float(out[0, 0, 0, 0]))
for call in (
    lambda: attn.linear_attention(q, q, q, mask=attn.Window(1, 1)),
    lambda: attn.dot_product_attention(q, q[..., :3], q),
    lambda: attn.dot_product_attention(q, q.astype(int), q),
    lambda: attn.masks.Window(-1, 0),
):
    try:
        call()
        print("accepted")
    except (NotImplementedError, ValueError, TypeError) as error:
        print(type(error).__name__)
"""
    command = [sys.executable, "-O", "-W", "error", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    said = ["(1, 3, 2, 4) 1.0", "NotImplementedError", "ValueError", "TypeError", "ValueError"]
    assert run.stdout.splitlines() == said, run.stderr


@pytest.mark.slow
def test_blockwise_softmax_has_a_second_derivative_in_forward_mode():
    """Its maximum was differentiated: no score is equal to it where XLA rounds them anew, and the
    derivative of max divides by how many are."""
    assert verdict(attn.Forgetting(block=8), COLUMNS["second order"]) == ("forward", "")


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_a_prompt_longer_than_max_length_is_refused_before_any_work(name, monkeypatch):
    kind = attn.MECHANISMS[name]
    mechanism = kind.examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    monkeypatch.setattr(kind, "__call__", None)
    with pytest.raises((NotImplementedError, ValueError)) as came:
        mechanism.prefill(q, k, v, max_length=8, **learned)
    refused = isinstance(came.value, ValueError)
    wanted = "max_length: expected an integer from 9" if refused else "decode"
    assert wanted in str(came.value)


DECODES = [n for n, m in attn.MECHANISMS.items() if m.step is not attn.Mechanism.step]


@pytest.mark.parametrize("name", DECODES)
def test_a_prompt_has_as_many_keys_as_queries(name):
    """The last query alone was taken for the first: `Causal()` showed it one key of the prompt."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    with pytest.raises(ValueError, match=r"^k: expected as many tokens as q, 1, got 9$"):
        mechanism.prefill(q[:, -1:], k, v, max_length=9, **learned)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODES)
def test_decoding_runs_under_shard_map(name):
    for mechanism in attn.MECHANISMS[name].examples():
        q, k, v, learned = inputs(mechanism, **TINY)
        gates = mechanism.gate_shapes(num_heads=4, num_kv_heads=2, head_dim=4)
        at = lambda arrays, t, n=1: jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, t, n, 1), arrays
        )

        def decode(q, k, v, gates, learned, mechanism=mechanism):
            tokens = q, k, v
            start = mechanism.prefill(*at(tokens, 0, 4), max_length=9, **at(gates, 0, 4), **learned)

            def one(state, t):
                return mechanism.step(state, *at(tokens, t), **at(gates, t), **learned)

            return start[1], jnp.moveaxis(jax.lax.scan(one, start[0], jnp.arange(4, 9))[1], 0, 1)

        each, shared = PartitionSpec("b"), PartitionSpec()
        mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
        specs = {"in_specs": (each,) * 4 + (shared,), "out_specs": (each, each)}
        of_tokens = {n: learned.pop(n) for n in gates}
        split = jax.shard_map(decode, mesh=mesh, **specs)
        with contextlib.suppress(NotImplementedError):  # some settings do not decode
            want = jax.eval_shape(decode, q, k, v, of_tokens, learned)
            assert jax.eval_shape(split, q, k, v, of_tokens, learned) == want


def sharded(f, specs, *arrays):
    """f of arrays split by `specs`, traced on a mesh of one device; the output varies."""
    mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    split = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("b"))
    return jax.eval_shape(split, *arrays)


@pytest.mark.parametrize("mechanism", attn.Pooled.examples(), ids=repr)
def test_the_first_step_runs_under_shard_map_too(mechanism):
    q, k, v, learned = inputs(mechanism, **{**TINY, "T": 1, "S": 1})
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)

    def first(q, k, v):
        return mechanism.step(mechanism.init_state((2,), **sizes), q, k, v, **learned)[1]

    assert sharded(first, (PartitionSpec("b"),) * 3, q, k, v).shape == (2, 1, 4, 3)


@pytest.mark.parametrize("mechanism", [attn.ABC(slots=5), attn.Luna(length=6)], ids=repr)
def test_learned_arrays_alone_may_differ_under_shard_map(mechanism):
    """As in an ensemble, which reads the same tokens on each device."""
    q, k, v, learned = inputs(mechanism, **TINY)
    loss = lambda learned: (mechanism(q, k, v, mask=Causal(), **learned) ** 2).sum()
    taught = sharded(jax.grad(loss), (PartitionSpec("b"),), learned)
    assert jax.tree.map(jnp.shape, taught) == jax.tree.map(jnp.shape, learned)
    prompt = lambda learned: mechanism.prefill(q, k, v, max_length=9, **learned)[1]
    assert sharded(prompt, (PartitionSpec("b"),), learned).shape == (2, 9, 4, 3)


@pytest.mark.parametrize("kind", [attn.Softmax, attn.Linear, attn.RWKV7, attn.Based])
@pytest.mark.parametrize("max_length", [-1, 2.5])
def test_a_max_length_that_is_none_is_refused_by_name(max_length, kind):
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "value_dim": 4}
    with pytest.raises(ValueError, match="max_length"):
        kind().init_state((1,), **sizes, max_length=max_length)


@pytest.mark.parametrize(
    ("settings", "arrays"),
    [
        ({"sinks": "learned"}, {}),
        ({"sinks": "zero"}, {"sinks": np.ones(4, np.float32)}),
        ({}, {"sinks": np.ones(4, np.float32)}),
        ({"temperature": "learned"}, {}),
        ({"temperature": 0.5}, {"temperature": np.ones(4, np.float32)}),
    ],
)
def test_softmax_takes_the_arrays_its_settings_ask_for_and_no_others(settings, arrays):
    q, k, v, _ = inputs(attn.Softmax(), **TINY)
    wrong = "takes no learned arrays" if arrays else r"expected \[4\], got nothing"
    with pytest.raises(
        TypeError if arrays else ValueError, match=f"^(sinks|temperature): .*{wrong}"
    ):
        attn.Softmax(**settings)(q, k, v, **arrays)


@pytest.mark.parametrize("name", DECODES)
def test_a_step_has_a_query_for_its_key_and_no_more(name):
    """Local Luong answered a second one, and cosFormer blamed shapes of its own."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **{**TINY, "T": 2, "S": 1})
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=4)
    state = mechanism.init_state((2,), **sizes)
    with pytest.raises(ValueError, match=r"^(q: expected one token|k: expected as many tokens)"):
        mechanism.step(state, q, k, v, **learned)


@pytest.mark.parametrize("name", DECODES)
def test_a_state_of_another_kind_is_refused_by_name(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **{**TINY, "T": 1, "S": 1})
    with (
        contextlib.suppress(NotImplementedError),
        pytest.raises(TypeError, match=r"^state: expect"),
    ):
        mechanism.step(None, q, k, v, **learned)


@pytest.mark.parametrize("name", ["window", "sinks", "luong", "based", "poolingformer"])
def test_a_ring_of_another_size_is_refused_by_name(name):
    """A window of 4 read on by the state of one of 3, or by all that softmax keeps."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    wider = dataclasses.replace(mechanism, window=4) if name != "window" else attn.SlidingWindow()
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)
    q, k, v, learned = inputs(wider, **{**TINY, "T": 1, "S": 1})
    step = lambda state: jax.eval_shape(lambda: wider.step(state, q, k, v, **learned))
    own = dataclasses.replace(wider, **{"left" if name == "window" else "window": 6})
    with pytest.raises(ValueError, match=r"^state: expected that of `init_state`, of \d+ tokens"):
        step(own.init_state((2,), **sizes))
    step(wider.init_state((2,), **sizes))


NSA = attn.NSA(compression_block=4, compression_stride=2, selection_block=4)
OTHER_BLOCKS = [
    (attn.Hierarchical(block_size=4), dict(block_size=8)),
    (attn.MoBA(block_size=4), dict(block_size=5)),
    (attn.MoBA(block_size=4), dict(block_size=8)),
    (attn.Quest(page=4), dict(page=3)),
    (NSA, dict(compression_block=8)),
    (NSA, dict(compression_stride=4)),
    (NSA, dict(selection_block=10)),
    (NSA, dict(separate=True)),
    (attn.Pooled(stride=4), dict(stride=3)),
    (attn.Pooled(stride=4), dict(stride=5)),
]


@pytest.mark.parametrize(("mechanism", "changes"), OTHER_BLOCKS, ids=str)
def test_a_state_of_other_blocks_is_refused_by_name(mechanism, changes):
    """Read on, it gave the numbers of neither, or jax said that an array has no such shape."""
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)
    q, k, v, learned = inputs(mechanism, **{**TINY, "T": 1, "S": 1})
    step = lambda state: jax.eval_shape(lambda: mechanism.step(state, q, k, v, **learned))
    with pytest.raises(ValueError, match=r"^state: expected that of `init_state`, of \d+ "):
        step(dataclasses.replace(mechanism, **changes).init_state((2,), **sizes))
    for max_length in (9, 3):
        step(mechanism.init_state((2,), **sizes | {"max_length": max_length}))


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize("dtype", ["int32", jnp.bool_, "complex64", "float33"])
def test_a_state_of_integers_is_refused_by_name(name, dtype):
    """That of tokens in place of q's: keys and values were cut to integers without a word."""
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)
    mechanism = attn.MECHANISMS[name].examples()[0]
    came = dtype if dtype == "float33" else jnp.dtype(dtype).name
    with pytest.raises(TypeError, match=f"^dtype: expected one of floats, as q has, got '?{came}"):
        mechanism.init_state((2,), **sizes, dtype=dtype)


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize(
    "wrong", [{"num_kv_heads": -1}, {"head_dim": 8.0}, {"value_dim": None}, {"max_length": "9"}]
)
def test_a_state_of_odd_sizes_is_refused_by_name(name, wrong):
    """jax said what it thinks of a shape with a float in it, or of an abstract array."""
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)
    ((size, value),) = wrong.items()
    if (name, size) == ("synthesizer", "head_dim"):
        return  # it keeps no keys
    with pytest.raises(
        ValueError, match=f"^{size}: expected an integer from 0 to .*, got {value!r}"
    ):
        attn.MECHANISMS[name].examples()[0].init_state((2,), **sizes | wrong)


def test_a_state_of_other_query_heads_is_refused_by_name():
    """jax said that shapes do not go together, of sums within."""
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=9)
    state = attn.Forgetting().init_state((2,), **sizes)
    q, k, v, gates = inputs(attn.Forgetting(), **{**TINY, "T": 1, "S": 1, "N": 2})
    with pytest.raises(ValueError, match=r"^q: expected 4 heads to go with state, got 2"):
        attn.Forgetting().step(state, q, k, v, **gates)


@pytest.mark.parametrize("name", DECODES)
def test_a_step_takes_floats_of_one_dtype(name):
    """Seven took integers, and gave what integers hold of the output, or values of another type."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=4)
    state = mechanism.init_state((2,), **sizes)
    q, k, v, learned = inputs(mechanism, **{**TINY, "T": 1, "S": 1})
    step = lambda *qkv: jax.eval_shape(lambda: mechanism.step(state, *qkv, **learned))
    with pytest.raises(TypeError, match=r"^q: expected a float dtype, got int32; cast it first"):
        step(*(x.astype(int) for x in (q, k, v)))
    with pytest.raises(TypeError, match=r"^v: expected q's dtype float32, got float16; cast one"):
        step(q, k, v.astype("float16"))


@pytest.mark.parametrize(("held", "came"), [("float32", "float64"), ("float64", "bfloat16")])
@pytest.mark.parametrize("name", at_once(DECODES, FEW))
def test_a_state_of_another_width_is_refused_by_name(name, held, came):
    """Some lost the digits of float64, others blamed k, or a scan within."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=4, value_dim=3, max_length=4)
    with jax.enable_x64(True):
        q, k, v, learned = inputs(mechanism, dtype=jnp.dtype(came), **{**TINY, "T": 1, "S": 1})
        begun = lambda dtype: mechanism.init_state((2,), **sizes, dtype=dtype)
        step = lambda state: jax.eval_shape(mechanism.step, state, q, k, v, **learned)[1]
        with pytest.raises(TypeError, match=f"^state: expected .* with dtype=.*, got {held}"):
            step(begun(held))
        assert step(begun(came)).dtype == q.dtype


NONE = {"batch": {"batch": (0,)}, "queries": {"T": 0}, "keys": {"S": 0}, "widths": {"D": 0}}


@pytest.mark.parametrize("none", NONE)
@pytest.mark.parametrize("name", at_once(attn.MECHANISMS))
def test_of_nothing_comes_nothing(name, none):
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **{**TINY, **NONE[none]})
    given = {"mask": base_mask(mechanism), **learned}
    shape = lambda f, *arrays, **more: (
        jax.eval_shape(lambda arrays, more: f(*arrays, **more), arrays, {**given, **more}).shape
    )
    assert shape(mechanism, q, k, v) == (*q.shape[:-1], v.shape[-1])
    assert shape(mechanism.reference, q, k, v) == (*q.shape[:-1], v.shape[-1])
    N, T, S = q.shape[-2], q.shape[-3], k.shape[-3]
    with contextlib.suppress(NotImplementedError):
        assert shape(mechanism.weights, q, k) == (*q.shape[:-3], N, T, S)
    if T == S:
        prefill = functools.partial(mechanism.prefill, max_length=12)
        with contextlib.suppress(NotImplementedError):
            state, out = jax.eval_shape(lambda q, k, v: prefill(q, k, v, **learned), q, k, v)
            assert out.shape == (*q.shape[:-1], v.shape[-1])
            one = lambda x: x[:, :1]
            sizes = {"num_heads": N, "num_kv_heads": k.shape[-2], "head_dim": q.shape[-1]}
            each = {name: one(learned[name]) for name in mechanism.gate_shapes(**sizes)}
            given = *map(one, (q, k, v)), {**learned, **each}
            step = lambda state, q, k, v, arrays: mechanism.step(state, q, k, v, **arrays)
            _, out = jax.eval_shape(step, state, *given)
            assert out.shape == (*one(q).shape[:-1], v.shape[-1])


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@pytest.mark.parametrize("name", at_once(attn.MECHANISMS))
def test_numpys_float64_is_float32_everywhere(name):
    mechanism = attn.MECHANISMS[name].examples()[0]
    mask, sizes = base_mask(mechanism), dict(num_heads=4, num_kv_heads=2, head_dim=4)
    state = mechanism.init_state if name in DECODES else None
    arrays = inputs(mechanism, **TINY)
    as_numpy = jax.tree.map(lambda x: np.asarray(x, np.float64), arrays)
    gates = mechanism.gate_shapes(**sizes)
    one = lambda x: x[:, :1]

    def step(q, k, v, **learned):
        if state is None:
            raise NotImplementedError
        learned = {name: one(x) if name in gates else x for name, x in learned.items()}
        begun = state((2,), **sizes, value_dim=3, max_length=9)
        return mechanism.step(begun, one(q), one(k), one(v), **learned)

    def of(f, arrays, **given):
        with contextlib.suppress(NotImplementedError):
            *tokens, learned = arrays
            return jax.eval_shape(lambda: f(*tokens, **given, **learned))

    for f, how in (
        (mechanism, {"mask": mask}),
        (mechanism.reference, {"mask": mask}),
        (lambda q, k, v, **rest: mechanism.weights(q, k, **rest), {"mask": mask}),
        (mechanism.prefill, {"max_length": 9}),
        (step, {}),
    ):
        assert of(f, as_numpy, **how) == of(f, arrays, **how)


def test_a_state_of_float64_is_one_of_float32_without_x64():
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=4, value_dim=4, max_length=8)
    states = (attn.ABC(slots=3).init_state((2,), **sizes, dtype=x) for x in ("float32", "float64"))
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_learned_arrays_start_in_float32_under_x64(name):
    sizes = dict(num_heads=2, num_kv_heads=2, head_dim=4, value_dim=4, max_length=8)
    for mechanism in attn.MECHANISMS[name].examples():
        with jax.enable_x64(True):
            learned = jax.eval_shape(
                lambda key, m=mechanism: m.init(key, **sizes), jax.random.key(0)
            )
        assert {x.dtype for x in learned.values()} <= {jnp.dtype("float32")}, learned


@pytest.mark.parametrize("kind", [attn.Softmax, attn.Differential, attn.TalkingHeads])
def test_a_record_with_a_list_of_implementations_is_hashable(kind):
    several = kind(implementation=["blockwise", "materialized"])
    assert several == kind(implementation=("blockwise", "materialized"))
    assert hash(several) == hash(kind(implementation=("blockwise", "materialized")))
    assert kind(implementation="blockwise").implementation == "blockwise"


ONES = jnp.ones((1, 5, 2, 4))


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (attn.Softmax, "qk_norm"),
        (attn.Reformer, "shared_qk"),
        (attn.Forgetting, "output_norm"),
        (attn.GatedDeltaNet, "output_norm"),
        (attn.GlobalWindow, "separate"),
        (attn.norms.HeadNorm, "together"),
        (functools.partial(attn.dot_product_attention, ONES, ONES, ONES), "return_lse"),
    ],
)
def test_a_flag_is_true_or_false(kind, flag):
    with pytest.raises(TypeError, match=f"^{flag}: expected True or False, got 'no'"):
        kind(**{flag: "no"})


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_a_list_in_place_of_an_array_is_named(name):
    """cosFormer asked for its dtype before it was looked at."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    for wrong in (([[1.0]], k, v), (q, [[1.0]], v), (q, k, [[1.0]])):
        with pytest.raises(TypeError, match=r"^[qkv]: expected an array, got list$"):
            mechanism(*wrong, mask=base_mask(mechanism), **learned)


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_definitions_and_weights_refuse_by_name_what_a_call_does(name):
    """Those of `differential` took integers and `talking_heads` any values without a word."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, v, learned = inputs(mechanism, **TINY)
    how = dict(mask=base_mask(mechanism), **learned)
    whole, narrow = (q.astype(int), k.astype(int), v.astype(int)), jnp.float16
    mixed = (q, k.astype(narrow), v), (q, k, v.astype(narrow)), (q, k, v[..., :1, :, :])
    for wrong in (([[1.0]], k, v), (q, [[1.0]], v), (q, k, [[1.0]]), whole, *mixed):
        with pytest.raises((TypeError, ValueError), match=r"^[qkv]: expected"):
            mechanism.reference(*wrong, **how)
    with pytest.raises(TypeError, match=r"^mask: expected a Mask"):
        mechanism.reference(q, k, v, **how | {"mask": jnp.ones((9, 9), bool)})
    for wrong in (([[1.0]], k), (q, [[1.0]]), whole[:2], mixed[0][:2]):
        with (
            contextlib.suppress(NotImplementedError),
            pytest.raises(TypeError, match=r"^[qkv]: expected"),
        ):
            mechanism.weights(*wrong, **how)


@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_weights_are_in_float32_beside_narrow_tokens(name):
    """Those of `nystrom`, `luna`, `pooled` and `hierarchical` were rounded to bfloat16."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    q, k, _, learned = inputs(mechanism, dtype=jnp.bfloat16, **TINY)
    with contextlib.suppress(NotImplementedError):
        weights = functools.partial(mechanism.weights, mask=base_mask(mechanism))
        assert jax.eval_shape(lambda *x: weights(*x[:2], **x[2]), q, k, learned).dtype == "float32"


def test_an_array_of_another_library_is_named():
    """Of its dtype NumPy said that it could not interpret it."""
    q = jnp.ones((1, 3, 2, 4))
    tensor = types.SimpleNamespace(shape=q.shape, ndim=q.ndim, dtype="torch.float32")
    call = lambda q, k, v, **more: attn.dot_product_attention(q, k, v, **more)
    for name, wrong in {"q": (tensor, q, q), "k": (q, tensor, q), "v": (q, q, tensor)}.items():
        with pytest.raises(TypeError, match=f"^{name}: expected an array, got SimpleNamespace$"):
            call(*wrong)
    with pytest.raises(TypeError, match=r"^sinks: expected an array of floats, got torch"):
        call(q, q, q, sinks=tensor)
    with pytest.raises(TypeError, match=r"^bias: expected a Bias or a float array, got torch"):
        call(q, q, q, bias=tensor)
    tokens = types.SimpleNamespace(shape=(1, 3), ndim=2, dtype="torch.int64")
    with pytest.raises(TypeError, match=r"^tokens: expected an array of integers, got torch"):
        check_integers("tokens", tokens)


def test_masks_that_are_none_are_named():
    with pytest.raises(TypeError, match="masks: expected masks or their JSON, got 5"):
        attn.BlockSparse(masks=5)


def test_what_no_layer_can_add_is_refused_where_it_is_set():
    asked = {"short_conv": (-1, True, 2.0, None), "output_gate": ("tanh", "", 1)}
    found = {name: 0 for name in asked}
    for kind in attn.MECHANISMS.values():
        for name in asked.keys() & {field.name for field in dataclasses.fields(kind)}:
            found[name] += 1
            for value in asked[name]:
                with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value!r}$"):
                    kind(**{name: value})
    assert min(found.values()) > 0, found


@pytest.mark.parametrize("name", ["linear", "hierarchical", "moba", "nsa", "quest"])
def test_integers_of_numpy_run_as_pythons(name):
    """As a sweep by np.arange gives them: they have no bit_length."""
    mechanism = attn.MECHANISMS[name].examples()[0]
    fields = {f.name: getattr(mechanism, f.name) for f in dataclasses.fields(mechanism)}
    numpys = {name: np.int64(x) for name, x in fields.items() if type(x) is int}
    again = dataclasses.replace(mechanism, **numpys)
    q, k, v, learned = inputs(mechanism, **TINY)
    whole = lambda: again(q, k, v, mask=base_mask(again), **learned)
    prompt = lambda: again.prefill(q, k, v, max_length=np.int64(12), **learned)[1]
    assert jax.eval_shape(whole).shape == jax.eval_shape(prompt).shape == (2, 9, 4, 3)
    assert again.flops(9, 9, 4, 2, 4, 3) == mechanism.flops(9, 9, 4, 2, 4, 3)


@pytest.mark.parametrize(
    ("kind", "name", "x"),
    [
        (attn.HGRN2, "lower_bound", np.float32(0.25)),
        (attn.Lightning, "layer_fraction", np.float32(0.25)),
        (attn.Differential, "lambda_init", np.float32(0.25)),
        (attn.Sinkhorn, "temperature", np.float32(0.25)),
        (attn.RWKV7, "bonus", np.float32(0.25)),
        (attn.Mamba2, "short_conv", np.int64(3)),
        (attn.positions.Rotary, "base", np.int64(500)),
    ],
)
def test_a_number_of_numpy_is_a_number(kind, name, x):
    assert kind(**{name: x}) == kind(**{name: x.item()})
    with pytest.raises(ValueError, match=f"{name}: expected"):
        kind(**{name: str(x)})
