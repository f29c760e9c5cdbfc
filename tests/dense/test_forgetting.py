"""Forgetting attention where a difference of two plain running sums is not enough."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    FULL,
    Array,
    Causal,
    Forgetting,
    Padding,
    Prefix,
    Segments,
    forgetting_attention,
)
from attn.testing.contract import rms

EPS = 2.0**-23
CAUSAL = Causal()


def drawn(T, N=1, H=8):
    draw = np.random.default_rng(0).normal
    q, k, v = (jnp.asarray(draw(size=(1, T, N, H)), jnp.float32) for _ in range(3))
    return q, k, v, -jnp.abs(jnp.asarray(draw(size=(1, T, N)), jnp.float32))


def defined(q, k, v, log_decay):
    """One head, in NumPy: the sum over j < l <= i itself."""
    q, k, v, g = (np.asarray(x, np.float64)[0, :, 0] for x in (q, k, v, log_decay))
    total = np.cumsum(g)
    scores = q @ k.T / q.shape[-1] ** 0.5 + total[:, None] - total
    scores = np.where(np.tri(len(g), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def attend(q, k, v, log_decay, mask=CAUSAL):
    return forgetting_attention(q, k, v, log_decay=log_decay, mask=mask)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("size", [0.05, 1.0])
def test_a_long_sequence_is_as_exact_as_a_short_one(size):
    *qkv, log_decay = drawn(1500)
    out = np.asarray(jax.jit(attend)(*qkv, size * log_decay))[0, :, 0]
    want = defined(*qkv, size * log_decay)
    assert rms(out - want) <= 8 * EPS * rms(want)


@pytest.mark.parametrize("gate", [-1e4, -1e9, -np.inf])
def test_after_a_hard_gate_it_is_as_if_nothing_was_before(gate):
    q, k, v, log_decay = drawn(40)
    hard = log_decay.at[:, 9].set(gate)
    out, of = attend(q, k, v, hard), lambda x: x[:, 9:]
    np.testing.assert_allclose(of(out), attend(of(q), of(k), of(v), of(log_decay)), atol=1e-6)
    grads = jax.grad(lambda *x: (attend(*x) ** 2).sum(), (0, 1, 2, 3))(q, k, v, hard)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [None, 0])
def test_a_document_in_parts_forgets_by_its_own_gates(offset):
    """Gates of the documents and of the padding between its parts were counted, NaN ones too."""
    ids = jnp.asarray([[1, 1, 0, 2, 0, 1, 0, 2, 1, 1, 0]])
    shown = jnp.asarray([[True] * 8 + [False] + [True] * 2])
    mask = Segments(ids, ids) & Padding(keys=shown, queries=shown)
    q, k, v, log_decay = arrays = drawn(11)
    for n in range(3):
        own = np.asarray((ids == n) & shown)
        broken = jnp.where(own[..., None], log_decay, jnp.nan)
        base = FULL if offset is None else Causal(offset)
        out = attend(q, k, v, broken, base & mask)[own]
        alone = [x[own][None] for x in arrays]
        np.testing.assert_allclose(out, attend(*alone, base)[0], atol=1e-6)
        if offset is not None:
            np.testing.assert_allclose(out[:, 0], defined(*alone), atol=1e-6)


def test_queries_of_documents_stand_among_their_keys():
    key_ids, query_ids = jnp.asarray([[4, 7, 4, 7, 4, 7]]), jnp.asarray([[7, 4, 4]])
    q, k, v, log_decay = drawn(6)
    mask = Causal(3) & Segments(query_ids, key_ids)
    out = np.asarray(attend(q[:, 3:], k, v, log_decay, mask))[0]
    for i, own in ((0, [1, 3]), (1, [0, 2, 4]), (2, [0, 2, 4])):
        q_last = jnp.broadcast_to(q[:, 3 + i, None], (1, len(own), 1, 8))
        want = defined(q_last, *(x[:, np.array(own)] for x in (k, v, log_decay)))[-1]
        np.testing.assert_allclose(out[i, 0], want, atol=1e-6)


def test_several_segments_are_documents_of_tokens_that_share_all_ids():
    """Only the first were counted, so that their order mattered."""
    one, two = jnp.asarray([[0, 0, 0, 1, 1, 1]]), jnp.asarray([[0, 1, 0, 0, 1, 0]])
    arrays = drawn(6)
    want = attend(*arrays, CAUSAL & Segments(one * 2 + two))
    for mask in (Segments(one) & Segments(two), Segments(two) & Segments(one)):
        np.testing.assert_allclose(attend(*arrays, CAUSAL & mask), want, atol=1e-6)


@pytest.mark.parametrize("gate", [np.nan, np.inf, 0.5])
def test_a_gate_that_is_none_reaches_what_forgets_by_it_alone(gate):
    q, k, v, log_decay = drawn(12)
    ids = jnp.asarray([[0] * 5 + [1] * 7])
    broken = log_decay.at[:, 2].set(gate)
    mask = CAUSAL & Segments(ids, ids)
    out, clean = attend(q, k, v, broken, mask), attend(q, k, v, log_decay, mask)
    np.testing.assert_array_equal(out[:, :2], clean[:, :2])
    assert np.isnan(out[:, 2:5]).all()
    np.testing.assert_allclose(out[:, 5:], clean[:, 5:], atol=1e-6)


@pytest.mark.slow
def test_it_decodes_in_float64_after_hard_gates():
    with jax.enable_x64(True):
        q, k, v, log_decay = (x.astype(jnp.float64) for x in drawn(6))
        log_decay = log_decay.at[:, 3].set(-jnp.inf)
        mechanism = Forgetting()
        sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "value_dim": 8}
        state = mechanism.init_state((1,), **sizes, max_length=6, dtype="float64")
        for t in range(6):
            at = lambda x: x[:, t : t + 1]
            state, out = mechanism.step(state, at(q), at(k), at(v), log_decay=at(log_decay))
            assert out.dtype == jnp.float64
            np.testing.assert_allclose(out, at(attend(q, k, v, log_decay)), atol=1e-12)


@pytest.mark.parametrize(
    ("tokens", "room", "told"),
    [(2, 6, r"q: expected one token .*, got \[1, 2, 1, 8\]"), (1, 0, "state: .* room for a token")],
)
def test_a_step_that_cannot_be_is_named(tokens, room, told):
    q, k, v, log_decay = drawn(tokens)
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "value_dim": 8}
    state = Forgetting().init_state((1,), **sizes, max_length=room)
    with pytest.raises(ValueError, match=told):
        Forgetting().step(state, q, k, v, log_decay=log_decay)


def test_a_token_of_another_batch_than_the_state_is_named():
    q, k, v, log_decay = drawn(1)
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "value_dim": 8}
    state = Forgetting().init_state((3,), **sizes, max_length=4)
    with pytest.raises(ValueError, match=r"k: expected one token \[3, 1, 1, 8\], got"):
        Forgetting().step(state, q, k, v, log_decay=log_decay)


def test_gates_that_are_not_floats_are_named():
    q, k, v, log_decay = drawn(3)
    with pytest.raises(TypeError, match="log_decay: expected an array of floats, got int32"):
        attend(q, k, v, log_decay.astype(int))


def test_an_offset_within_an_or_says_where_queries_stand():
    q, k, v, log_decay = drawn(12)
    last = lambda mask: attend(q[:, 7:], k, v, log_decay, mask)
    want = attend(q, k, v, log_decay, Causal() | Prefix(10))[:, 7:]
    np.testing.assert_allclose(last(Causal(7) | Prefix(10)), want, atol=1e-6)
    with pytest.raises(NotImplementedError, match=r"mask: .* offsets \[0, 7\]; give them one"):
        last(Causal(7) | (Causal() & Prefix(10)))
    # the one joined by & says it for all
    either = Causal() | Prefix(10)
    shown = Array(either.array(5, 12)[None])
    np.testing.assert_allclose(last(Causal(7) & either), last(Causal(7) & shown), atol=1e-6)
