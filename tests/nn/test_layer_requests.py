"""What a mechanism asks of its layer: a norm on each head, dropped weights, parts of a head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_mechanism import SOFTMAX, Toy, build, config, run

from attn import (
    NSA,
    Causal,
    Differential,
    GlobalWindow,
    Padding,
    Reformer,
    Segments,
    Softmax,
    differential_attention,
    positions,
)
from attn.nn import Attention, dropout
from attn.nn.keys import fold
from attn.norms import HeadNorm

W, N, K, H = 10, 4, 2, 8
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 5, W)), jnp.float32)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 5)), jnp.int32)
KEY = jax.random.key(7)
NEAR = dict(rtol=2e-5, atol=2e-5)
DROPPING = dataclasses.replace(SOFTMAX, dropout_rate=0.5)


def layer(mechanism, **changes):
    sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H, max_length=5, mechanism=mechanism)
    return Attention(W, **{**sizes, **changes}, key=jax.random.key(1))


def heads_of(a):
    q, k, v = jnp.split(X @ a.qkv[...], (N * H, (N + K) * H), axis=-1)
    return q.reshape(3, 5, N, H), k.reshape(3, 5, K, H), v.reshape(3, 5, K, H)


def normalised(y, scale=1.0):
    return y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) * scale


def test_head_norm_normalises_each_head_and_multiplies():
    a = layer(Differential(lambda_init=0.3))
    a.head_norm.scale[...] = jnp.arange(1.0, H + 1)
    q, k, v = heads_of(a)
    vectors = {name: x[...] for name, x in a.learned.items()}
    y = differential_attention(q, k, v, mask=Causal(), lambda_init=0.3, **vectors)
    y = 0.7 * normalised(np.asarray(y), np.arange(1, H + 1))
    want = y.reshape(3, 5, N * H) @ a.out[...]
    np.testing.assert_allclose(run(a, X, mask=Causal()), want, **NEAR)
    assert layer(Softmax()).head_norm is None
    with pytest.raises(ValueError, match=r"^head_norm: expected an attn.norms.HeadNorm, .*0.7"):
        layer(type("Times", (Softmax,), {"head_norm": 0.7})())
    with pytest.raises(ValueError, match=r"^together: expected False with centred"):
        HeadNorm(together=True, centred=True)


@pytest.mark.slow
def test_the_parts_of_a_head_are_rotated_and_normalised_by_themselves():
    a = layer(Differential(lambda_init=0.3), qk_norm=True)
    q, k, v = (np.asarray(y) for y in heads_of(a))

    def each(y):
        turn = lambda half: positions.rotary(jnp.asarray(normalised(half)), jnp.arange(5))
        return jnp.concatenate([turn(y[..., : H // 2]), turn(y[..., H // 2 :])], -1)

    got = a._project(X, None, jnp.arange(5), Causal())
    for x, want in zip(got[:3], (each(q), each(k), v)):
        np.testing.assert_allclose(x, want, **NEAR)
    # so scores depend on the distance alone, in both maps
    y, z = (run(a, X, positions=jnp.arange(5) + shift) for shift in (0, 3))
    np.testing.assert_allclose(y, z, rtol=1e-3, atol=1e-4)


BRANCHES = NSA(compression_block=2, compression_stride=1, selection_block=2, selected=3, window=2,
               separate=True)  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"xpos": True}, {"qk_norm": True}], ids=repr)
def test_keys_among_the_gates_are_made_as_k_is(changes):
    """The same projection gives the same keys."""
    a = layer(BRANCHES, **changes)
    for name, first in (("selected_k", N), ("near_k", N), ("near_v", N + K)):
        a.gates.projections[name]["kernel"][...] = a.qkv[:, first * H : (first + K) * H]
    _, k, v, given = a._project(X, None, jnp.arange(5), Causal())
    for name, want in (("selected_k", k), ("near_k", k), ("near_v", v)):
        np.testing.assert_allclose(given[name], want, **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"xpos": True}, {"qk_norm": True}], ids=repr)
def test_a_step_reads_the_keys_and_values_of_each_branch(changes):
    """Of projections of their own: copies of those of k and v would hide which are read."""
    a = layer(BRANCHES, **changes)
    whole = run(a, X, positions=jnp.arange(5), mask=Causal())
    state, _ = a.prefill(X[:, :3], positions=jnp.arange(3), max_length=5)
    for t in (3, 4):
        state, out = a.step(state, X[:, t : t + 1], positions=jnp.array([t]))
        np.testing.assert_allclose(out, whole[:, t : t + 1], **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "changes"),
    [
        (Padding(jnp.array([5, 3, 4])), {}),
        (Causal(), {"xpos": True}),
        (Segments(*[jnp.array([0, 0, 0, 1, 1])] * 2), {"qk_norm": True}),
    ],
    ids=["rotary", "xpos", "qk_norm"],
)
def test_queries_among_the_gates_are_made_as_q_is(mask, changes):
    """Global tokens that ask by the projections of all others ask what those ask."""
    a, b = (
        layer(GlobalWindow(window=1, positions=(0, 3), separate=separate), **changes)
        for separate in (True, False)
    )
    kernels = jnp.split(a.qkv[...], (N * H, (N + K) * H), axis=-1)
    for name, kernel in zip("qkv", kernels):
        a.gates.projections[f"global_{name}"]["kernel"][...] = kernel
    if "qk_norm" in changes:  # apart, so that neither does for the other
        for x in (a, b):
            x.q_norm.scale[...] = jnp.arange(1.0, H + 1)
            x.k_norm.scale[...] = jnp.arange(H, 0.0, -1) / 4
    own = jnp.array([0, 1, 2, 0, 1])  # each document counts for itself
    for places in (None, own):
        got, want = (run(x, X, mask=mask, positions=places) for x in (a, b))
        np.testing.assert_allclose(got, want, **NEAR)


def test_a_width_that_does_not_part_is_named():
    with pytest.raises(ValueError, match="head_dim: expected a multiple of 2 for Differential"):
        layer(Differential(), head_dim=7)
    with pytest.raises(ValueError, match="head_dim: expected a multiple of 2 for Differential"):
        config(mechanism=Differential(), head_dim=5)
    with pytest.raises(ValueError, match=r"positions: .* a head width that 4 divides, got 6"):
        config(mechanism=Differential(), positions="rotary")


def test_the_layer_drops_weights_only_with_a_key_and_a_rate():
    a = layer(DROPPING)
    dropped = run(a, X, dropout_key=KEY)
    q, k, v = heads_of(a)
    want = DROPPING(q, k, v, dropout_key=KEY).reshape(3, 5, -1) @ a.out[...]
    np.testing.assert_allclose(dropped, want, **NEAR)
    still = run(layer(SOFTMAX), X)
    np.testing.assert_array_equal(run(a, X), still)
    # Toy takes no dropout_key: what has no rate is never given one
    for mechanism in (SOFTMAX, Toy()):
        b = layer(mechanism)
        np.testing.assert_array_equal(run(b, X, dropout_key=KEY), run(b, X))


def test_a_block_drops_weights_and_residuals_by_keys_of_their_own():
    (block,) = build(mechanism=DROPPING, dropout=0.3, mlp_width=0).stack.blocks
    x, rest = jax.random.normal(KEY, (2, 5, 12)), dict(mask=Causal(), bias=None, positions=None)
    y = run(block.attention, run(block.attention_norm, x), mask=Causal(),
            dropout_key=fold(KEY, "weights"))  # fmt: skip
    want = x + dropout(y, 0.3, fold(KEY, "attention"))
    np.testing.assert_allclose(run(block, x, dropout_key=KEY, **rest), want, **NEAR)


@pytest.mark.slow
def test_an_encoder_drops_weights_by_its_key_in_every_form():
    shape = dict(mechanism=DROPPING, layers=2)
    loop, scan, remat = (build(**shape, **form) for form in ({}, {"scan": True}, {"remat": True}))
    y = run(loop, TOKENS, dropout_key=KEY)
    np.testing.assert_array_equal(run(loop, TOKENS, dropout_key=KEY), y)
    for form in (scan, remat):
        np.testing.assert_allclose(run(form, TOKENS, dropout_key=KEY), y, **NEAR)
    assert not np.allclose(run(loop, TOKENS, dropout_key=jax.random.key(8)), y)
    still = build(layers=2)
    np.testing.assert_array_equal(run(loop, TOKENS), run(still, TOKENS))


def test_residual_dropout_alone_is_what_it_was():
    # recorded before weights could be dropped: a new key must not move the old ones
    y = run(build(dropout=0.5, layers=2), TOKENS, dropout_key=KEY)
    np.testing.assert_allclose(y[0], BEFORE, rtol=1e-5)


BEFORE = [-0.23664227, -0.19299033, 0.13049258]


@pytest.mark.slow
@pytest.mark.parametrize("qk_norm", [False, True])
def test_shared_qk_is_one_kernel_for_queries_and_keys(qk_norm):
    one, two = Reformer(shared_qk=True, buckets=2), Reformer(buckets=2)
    a, b = (layer(m, num_kv_heads=N, qk_norm=qk_norm) for m in (one, two))
    assert a.qkv.shape == (W, 2 * N * H)
    q, v = jnp.split(a.qkv[...], 2, axis=-1)
    b.qkv[...] = jnp.concatenate([q, q, v], axis=-1)
    for context in (None, X[:, :4]):
        q, k, v, learned = b._project(X, context, None, Causal())
        want = jax.jit(one)(q, k, v, **learned).reshape(3, 5, N * H) @ a.out[...]
        np.testing.assert_allclose(run(a, X, context=context), want, **NEAR)


def test_shared_qk_with_fewer_key_heads_is_refused_by_name():
    mechanism = Reformer(shared_qk=True)
    with pytest.raises(ValueError, match="num_kv_heads: expected 4 with shared_qk, got 2"):
        layer(mechanism)
    with pytest.raises(ValueError, match="kv_heads: expected 2 or None with Reformer"):
        config(mechanism=mechanism, kv_heads=1, heads=2)
