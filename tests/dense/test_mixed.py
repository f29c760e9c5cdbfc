"""Differential and talking-heads attention: maps that are combined after their softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import attn
from attn import Alibi, ArrayBias, Causal, Padding
from attn.positions import alibi_slopes
from attn.testing import inputs, rms

T, S = 9, 12
LENGTHS = np.array([7, 12])
SEEN = np.tril(np.ones((T, S), bool)) & (np.arange(S) < LENGTHS[:, None, None])
MASK = Causal() & Padding(jnp.asarray(LENGTHS))
SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
BLOCKS = {"implementation": "blockwise", "block": 8}


def differential(q, k, v, seen, learned, **more):
    vectors = [learned[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")]
    return oracle.differential(q, k, v, seen, vectors, 0.6, **more)


def talking_heads(q, k, v, seen, learned, **more):
    return oracle.talking_heads(q, k, v, seen, **learned, **more)


BOTH = pytest.mark.parametrize(
    ("mechanism", "define"),
    [
        (attn.Differential(lambda_init=0.6, **BLOCKS), differential),
        (attn.TalkingHeads(**BLOCKS), talking_heads),
    ],
    ids=["differential", "talking_heads"],
)


@BOTH
@pytest.mark.parametrize(("k_heads", "biased"), [(1, True), (2, False), (4, True)])
def test_equals_its_definition(mechanism, define, k_heads, biased):
    q, k, v, learned = inputs(mechanism, T=T, S=S, K=k_heads, scale=2.0)
    bias = np.random.default_rng(3).normal(size=(4, T, S)) if biased else None
    exact = lambda x: np.asarray(x, np.float64)
    given = jax.tree.map(exact, learned)
    want = np.stack(
        [define(*map(exact, (q[b], k[b], v[b])), SEEN[b], given, bias=bias) for b in range(2)]
    )
    bias = None if bias is None else jnp.asarray(bias[None], jnp.float32)
    for form in (mechanism, mechanism.reference):
        got = exact(jax.jit(form)(q, k, v, mask=MASK, bias=bias, **learned))
        assert rms(got - want) / rms(want) < 32 * 2**-23
    w = jax.jit(mechanism.weights)(q, k, mask=MASK, bias=bias, **learned)
    got = jnp.einsum("bnts,bsnd->btnd", w, jnp.repeat(v, 4 // k_heads, axis=-2))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)


@BOTH
def test_grouped_heads_equal_repeated_heads(mechanism, define):
    q, k, v, learned = inputs(mechanism)
    twice = lambda x: jnp.repeat(x, 2, axis=-2)
    call = jax.jit(mechanism)
    grouped, repeated = call(q, k, v, **learned), call(q, twice(k), twice(v), **learned)
    np.testing.assert_allclose(grouped, repeated, rtol=1e-4, atol=2e-6)


@BOTH
def test_what_nobody_asks_about_reaches_no_learned_array(mechanism, define):
    # a loss over the past, when the future is NaN: 0 * NaN in the gradient of what is shared
    q, k, v, learned = inputs(mechanism)
    dirty = [x.at[:, 8:].set(jnp.nan) for x in (q, k, v)]

    @jax.jit
    def gradient(q, k, v):
        loss = lambda g: (mechanism(q, k, v, mask=Causal(), **g)[:, :8] ** 2).sum()
        return jax.grad(loss)(learned)

    jax.tree.map(np.testing.assert_array_equal, gradient(*dirty), gradient(q, k, v))


@BOTH
def test_a_prompt_at_once_and_then_step_by_step(mechanism, define):
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    want = jax.jit(mechanism.reference)(q, k, v, mask=Causal(), **learned)
    prompt = (x[:, :5] for x in (q, k, v))
    prefill = jax.jit(mechanism.prefill, static_argnames="max_length")
    step = jax.jit(mechanism.step)
    state, out = prefill(*prompt, max_length=8, **learned)
    np.testing.assert_allclose(out, want[:, :5], rtol=1e-4, atol=2e-6)
    for t in range(5, 8):
        at = slice(t, t + 1)
        state, out = step(state, q[:, at], k[:, at], v[:, at], **learned)
        np.testing.assert_allclose(out, want[:, at], rtol=1e-4, atol=2e-6)
    # one more than the cache holds is not answered from what is left of it
    _, out = step(state, q[:, 8:], k[:, 8:], v[:, 8:], **learned)
    assert np.isnan(out).all()
    empty = mechanism.init_state((2,), max_length=8, **SIZES)
    with pytest.raises(ValueError, match="q: expected one token"):
        mechanism.step(empty, q[:, :2], k[:, :1], v[:, :1], **learned)
    with pytest.raises(ValueError, match="k: expected one token"):
        mechanism.step(empty, q[:, :1], k[:, :2], v[:, :2], **learned)


def test_equal_halves_leave_one_minus_lambda_of_softmax():
    q, k, v, _ = inputs(attn.Differential(), H=4)
    twice = lambda x: jnp.concatenate([x, x], -1)
    zeros = dict.fromkeys(("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"), jnp.zeros(4))
    got = attn.differential_attention(twice(q), twice(k), v, lambda_init=0.3, **zeros)
    want = 0.7 * attn.dot_product_attention(q, k, v)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)


def test_lambda_init_follows_the_depth():
    layers = attn.Differential.for_layers(3, dropout_rate=0.1)
    got = [m.lambda_init for m in layers]
    np.testing.assert_allclose(got, [0.2, 0.8 - 0.6 * np.exp(-0.3), 0.8 - 0.6 * np.exp(-0.6)])
    assert [m.head_norm.times for m in layers] == [1 - x for x in got]
    assert {m.dropout_rate for m in layers} == {0.1}


def test_the_two_maps_drop_weights_independently():
    # equal halves and lambda 1: what is left is what one map dropped and the other did not
    mechanism = attn.Differential(implementation="materialized", dropout_rate=0.5, lambda_init=0.0)
    q, k, v, _ = inputs(mechanism, H=4)
    twice = lambda x: jnp.concatenate([x, x], -1)
    one = dict.fromkeys(("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"), jnp.zeros(4))
    one["lambda_q1"] = one["lambda_k1"] = jnp.full(4, np.sqrt(np.log(2) / 4), jnp.float32)
    still = mechanism(twice(q), twice(k), v, **one)
    np.testing.assert_allclose(still, jnp.zeros_like(still), atol=1e-5)
    out = mechanism(twice(q), twice(k), v, dropout_key=jax.random.key(0), **one)
    assert rms(out) > 0.1 * rms(v)


def test_heads_that_do_not_talk_are_softmax():
    q, k, v, _ = inputs(attn.TalkingHeads())
    bias = Alibi(jnp.asarray(alibi_slopes(4)))
    same = dict.fromkeys(("logit_mixing", "weight_mixing"), jnp.eye(4))
    got = attn.talking_heads_attention(q, k, v, mask=Causal(), bias=bias, **same)
    want = attn.dot_product_attention(q, k, v, mask=Causal(), bias=bias)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)


def test_a_swap_of_heads_goes_from_rows_to_columns():
    # mixing[l, n] is the share of head l in head n: a cycle tells it from its transpose
    q, k, v, _ = inputs(attn.TalkingHeads(), K=4)
    cycle = jnp.roll(jnp.eye(4), 1, axis=1)  # head n to n + 1
    bias = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 1, 19)), jnp.float32)
    got = attn.talking_heads_attention(
        q, k, v, bias=ArrayBias(bias), logit_mixing=cycle, weight_mixing=jnp.eye(4)
    )
    back = lambda x: jnp.roll(x, 1, axis=-2)
    want = attn.dot_product_attention(back(q), back(k), v, bias=ArrayBias(bias))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)


def test_mistakes_are_named():
    q, k, v, learned = inputs(attn.Differential())
    run = functools.partial(attn.differential_attention, **learned)
    with pytest.raises(ValueError, match=r"q: expected an even head width.* got 7"):
        run(q[..., :7], k[..., :7], v)
    with pytest.raises(ValueError, match=r"lambda_q1: expected \[3\]"):
        run(q[..., :6], k[..., :6], v)
    with pytest.raises(ValueError, match="lambda_init: expected a number in"):
        attn.Differential(lambda_init=1.0)
    with pytest.raises(ValueError, match=r"lambda_init: expected a number in \[0, 1\), got nan"):
        run(q[..., :6], k[..., :6], v, lambda_init=float("nan"))
    with pytest.raises(ValueError, match="dropout_key"):
        run(q, k, v, dropout_rate=0.1)
    with pytest.raises(TypeError, match=r"^dropout_key: expected a key from jax.random.key, got 0"):
        run(q, k, v, dropout_rate=0.1, dropout_key=0)
    q, k, v, learned = inputs(attn.TalkingHeads())
    run = functools.partial(attn.talking_heads_attention, q, k, v)
    with pytest.raises(ValueError, match=r"weight_mixing: expected \[4, 4\] .* got \[4, 3\]"):
        run(**{**learned, "weight_mixing": jnp.ones((4, 3))})
    with pytest.raises(ValueError, match="dropout_key"):
        run(dropout_rate=0.1, **learned)
    for kind in (attn.Differential, attn.TalkingHeads):
        with pytest.raises(ValueError, match="implementation: expected one of"):
            kind(implementation="fast")
        with pytest.raises(ValueError, match="dropout_rate"):
            kind(dropout_rate=1.0)
