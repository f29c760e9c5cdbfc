"""Pooled attention against explicit sets in NumPy, and what it may never see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import FULL, Causal, Padding, Segments
from attn.compressed.pooled import Pooled, pooled_attention
from attn.testing import inputs

run = jax.jit(lambda m, q, k, v, g, mask: m(q, k, v, mask=mask, **g), static_argnums=0)


def oracle(q, k, v, *, stride, keys, offset=None, kernels=None):
    """One batch row, q [T, N, H]; `keys` are the tokens that are there, `offset` that of Causal."""
    T, N, H = q.shape
    S, K, D = v.shape
    out = np.zeros((T, N, D))
    blocks = [[s for s in range(p, min(p + stride, S)) if s in keys] for p in range(0, S, stride)]
    for n in range(N):
        kh = n // (N // K)

        def pooled(x, w):
            if w is None:
                return lambda p: np.mean([x[s, kh] for s in blocks[p]], axis=0)
            return lambda p: sum(x[s, kh] @ w[kh, s - p * stride] for s in blocks[p])

        pk, pv = (pooled(x, w) for x, w in zip((k, v), kernels or (None, None)))
        for t in range(T):
            place = S + stride if offset is None else t + offset
            near = [s for s in keys if s <= place and s // stride == place // stride]
            far = [p for p in range(len(blocks)) if blocks[p] and p < place // stride]
            seen = [(pk(p), pv(p)) for p in far] + [(k[s, kh], v[s, kh]) for s in near]
            if seen:
                w = np.exp([q[t, n] @ key / np.sqrt(H) for key, _ in seen])
                out[t, n] = sum(a * value for a, (_, value) in zip(w / w.sum(), seen))
    return out


@pytest.mark.parametrize("mechanism", [Pooled(stride=3), Pooled(stride=4, pool="conv")], ids=repr)
@pytest.mark.parametrize("offset", [None, 0, 5, -4, 40])
def test_it_is_softmax_over_an_explicit_set(mechanism, offset):
    q, k, v, learned = inputs(mechanism, T=9, S=11)
    keys = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 6, 7, 10]]
    there = np.array([[s in row for s in range(11)] for row in keys])
    mask = (FULL if offset is None else Causal(offset)) & Padding(keys=jnp.asarray(there))
    with jax.default_matmul_precision("highest"):
        got = run(mechanism, q, k, v, learned, mask)
    kernels = [np.asarray(x, np.float64) for x in learned.values()] or None
    for row in range(2):
        arrays = [np.asarray(x[row], np.float64) for x in (q, k, v)]
        settings = {"stride": mechanism.stride, "kernels": kernels, "offset": offset}
        want = oracle(*arrays, keys=keys[row], **settings)
        np.testing.assert_allclose(got[row], want, atol=2e-5)


@pytest.mark.parametrize("mask", [FULL, Causal()], ids=repr)
def test_padding_equals_the_shorter_sequence_alone(mask):
    mechanism = Pooled(stride=4)
    q, k, v, _ = inputs(mechanism, T=13, S=13, batch=(2,))
    lengths = [13, 6]
    got = run(mechanism, q, k, v, {}, mask & Padding(jnp.array(lengths)))
    for row, n in enumerate(lengths):
        alone = run(mechanism, *(x[row, :n] for x in (q, k, v)), {}, mask)
        np.testing.assert_allclose(got[row, :n], alone, atol=1e-5)


def test_a_stride_of_one_is_softmax_and_a_causal_first_block_too():
    q, k, v, _ = inputs(Pooled(), T=7, S=7)
    exact = functools.partial(oracle, keys=list(range(7)), stride=1)
    want = np.stack([exact(*(np.asarray(x[i]) for x in (q, k, v))) for i in range(2)])
    np.testing.assert_allclose(run(Pooled(stride=1), q, k, v, {}, FULL), want, atol=1e-5)
    want = np.stack([exact(*(np.asarray(x[i]) for x in (q, k, v)), offset=0) for i in range(2)])
    for stride in (7, 10**9):
        got = run(Pooled(stride=stride), q, k, v, {}, Causal())
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("mask", [FULL, Causal(9)], ids=repr)
def test_a_stride_beyond_the_length_is_one_block(mask):
    mechanism = Pooled(stride=40, pool="conv")
    q, k, v, learned = inputs(mechanism, T=5, S=7)
    got = run(mechanism, q, k, v, learned, mask)
    want = jax.jit(functools.partial(mechanism.reference, mask=mask))(q, k, v, **learned)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_token_is_seen_by_exactly_those_that_may():
    """A NaN in token 5 of the second head shows from query 5 on, in that head alone."""
    mechanism = Pooled(stride=3)
    q, k, v, _ = inputs(mechanism, T=9, S=9, K=4)
    for spoilt in ((q, k.at[:, 5, 1].set(jnp.nan), v), (q, k, v.at[:, 5, 1].set(jnp.inf))):
        lost = np.isnan(run(mechanism, *spoilt, {}, Causal())).any(-1)
        want = np.zeros((9, 4), bool)
        want[5:, 1] = True
        assert (lost == want).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"stride": 0}, "stride"), ({"stride": -3}, "stride"), ({"pool": "max"}, "pool")],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(ValueError, match=name):
        Pooled(**settings)


def test_bad_arrays_are_named():
    q, k, v, learned = inputs(Pooled(pool="conv"))
    with pytest.raises(ValueError, match=r"_kernel: expected .* got nothing"):
        Pooled(pool="conv")(q, k, v)
    with pytest.raises(TypeError, match="takes no learned arrays"):
        Pooled()(q, k, v, **learned)
    with pytest.raises(ValueError, match=r"key_kernel, value_kernel: .* got key_kernel alone"):
        pooled_attention(q, k, v, key_kernel=learned["key_kernel"])
    with pytest.raises(ValueError, match="key_kernel: expected"):
        pooled_attention(q, k, v, stride=2, **learned)
    ids = jnp.zeros(q.shape[:2], int)
    with pytest.raises(NotImplementedError, match="Segments"):
        pooled_attention(q, k, v, mask=Segments(ids, ids))


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    q, k, v, _ = inputs(Pooled(), **shape)
    for mask in (FULL, Causal()):
        out = Pooled()(q, k, v, mask=mask)
        assert out.shape == (*q.shape[:-1], v.shape[-1])
        assert (np.asarray(out) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Pooled(stride=3), Pooled(stride=40, pool="conv")], ids=repr)
def test_decoding_spreads_what_is_not_finite_and_tells_when_it_forgot(mechanism):
    q, k, v, learned = inputs(mechanism, T=9, S=9, batch=())
    spoilt = k.at[4, 1].set(jnp.nan)
    want = run(mechanism, q, spoilt, v, learned, Causal())
    state, first = mechanism.prefill(q[:2], spoilt[:2], v[:2], max_length=8, **learned)
    step, outs = jax.jit(mechanism.step), [first]
    for t in range(2, 9):
        state, out = step(state, *(x[t : t + 1] for x in (q, spoilt, v)), **learned)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs)[:8], want[:8], atol=1e-5)
    assert np.isnan(want[4:]).any()
    assert not np.isnan(want[:4]).any()
    for _ in range(4):  # there is room for whole blocks
        state, out = step(state, q[:1], k[:1], v[:1], **learned)
    assert np.isnan(out).all()
    with pytest.raises(ValueError, match="q: expected one token"):
        mechanism.step(state, q, k, v, **learned)
