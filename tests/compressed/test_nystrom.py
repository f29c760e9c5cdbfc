"""Nystroem attention against loops in NumPy, and what the paper says of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import FULL, Causal, Padding
from attn.compressed.nystrom import Nystrom, averages, nystrom_attention, pseudo_inverse
from attn.testing import inputs


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def segments(tokens, landmarks):
    """The tokens split in order: as many segments as there may be, the longer ones first."""
    return [list(part) for part in np.array_split(tokens, min(landmarks, len(tokens)))]


def oracle(q, k, v, *, rows, keys, landmarks, iterations, conv=None):
    """One batch row, q [T, N, H]; `rows` and `keys` are the tokens that take part."""
    T, N, H = q.shape
    _, K, D = v.shape
    out = np.zeros((T, N, D))
    for n in range(N):
        kh = n // (N // K)
        qn, kn, vn = q[:, n] / np.sqrt(H), k[:, kh], v[:, kh]
        p = np.stack([qn[part].mean(0) for part in segments(rows, landmarks)])
        lm = np.stack([kn[part].mean(0) for part in segments(keys, landmarks)])
        f, a, b = softmax(qn @ lm.T), softmax(p @ lm.T), softmax(p @ kn[keys].T)
        z = a.T / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max())
        one = np.eye(len(a))
        for _ in range(iterations):
            az = a @ z
            z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
        if len(keys) <= landmarks or len(rows) <= landmarks:
            out[:, n] = softmax(qn @ kn[keys].T) @ vn[keys]
        else:
            out[:, n] = f @ z @ (b @ vn[keys])
        for t in range(T):
            for c in range(0 if conv is None else conv.shape[1]):
                s = t + c - conv.shape[1] // 2
                if s in keys:
                    out[t, n] += conv[kh, c] * vn[s]
    return out


called = jax.jit(lambda m, q, k, v, g, mask: m(q, k, v, mask=mask, **g), static_argnums=0)


def run(mechanism, q, k, v, learned, mask=FULL):
    with jax.default_matmul_precision("highest"):
        return np.asarray(called(mechanism, q, k, v, learned, mask), np.float64)


def double(x):
    return np.asarray(x, np.float64)


@pytest.mark.parametrize(
    ("mechanism", "T", "S"),
    [
        (Nystrom(landmarks=4, conv_kernel=3), 13, 13),
        (Nystrom(landmarks=5, iterations=3), 11, 17),
        (Nystrom(landmarks=5, iterations=3), 4, 17),
        (Nystrom(landmarks=8, conv_kernel=5), 11, 3),
        (Nystrom(landmarks=9), 2, 2),
    ],
    ids=repr,
)
def test_it_is_the_papers_equation(mechanism, T, S):
    q, k, v, learned = inputs(mechanism, T=T, S=S)
    got = run(mechanism, q, k, v, learned)
    settings = {"landmarks": mechanism.landmarks, "iterations": mechanism.iterations}
    settings |= {name: double(x) for name, x in learned.items()}
    for row in range(2):
        arrays = [double(x[row]) for x in (q, k, v)]
        want = oracle(*arrays, rows=list(range(T)), keys=list(range(S)), **settings)
        np.testing.assert_allclose(got[row], want, atol=2e-4)


def test_padding_equals_the_shorter_sequence_alone():
    mechanism = Nystrom(landmarks=4, conv_kernel=3)
    q, k, v, learned = inputs(mechanism, T=15, S=15, batch=(3,))
    lengths = [15, 9, 3]
    got = run(mechanism, q, k, v, learned, Padding(jnp.array(lengths)))
    for row, n in enumerate(lengths):
        alone = run(mechanism, *(x[row, :n] for x in (q, k, v)), learned)
        np.testing.assert_allclose(got[row, :n], alone, atol=1e-5)


def test_holes_are_left_out_as_if_the_rest_were_together():
    mechanism = Nystrom(landmarks=3)
    q, k, v, _ = inputs(mechanism, T=14, S=14, batch=(1,))
    there = np.arange(14) % 4 != 1
    mask = Padding(keys=jnp.asarray(there[None]), queries=jnp.asarray(there[None]))
    got = run(mechanism, q, k, v, {}, mask)
    alone = run(mechanism, *(x[:, there] for x in (q, k, v)), {})
    np.testing.assert_allclose(got[:, there], alone, atol=1e-5)
    assert (got[:, ~there] == 0).all()


def test_few_shown_queries_over_many_keys_are_exact():
    mechanism = Nystrom(landmarks=4)
    q, k, v, _ = inputs(mechanism, T=9, S=17, batch=(1,))
    asks = np.arange(9) % 3 == 1
    got = run(mechanism, q, k, v, {}, Padding(queries=jnp.asarray(asks[None])))[0]
    want = oracle(
        *(double(x[0]) for x in (q, k, v)),
        rows=np.flatnonzero(asks),
        keys=list(range(17)),
        landmarks=4,
        iterations=6,
    )
    np.testing.assert_allclose(got[asks], want[asks], atol=1e-5)


def test_an_exact_row_is_spoilt_by_its_own_query_alone():
    """With as many landmarks as queries, or as keys, no row is read through another query's."""
    mechanism = Nystrom(landmarks=5)
    q, k, v, learned = inputs(mechanism, T=5, S=17)
    got = run(mechanism, q.at[0, 2, 1].set(jnp.nan), k, v, learned)
    want = np.zeros((2, 5, 4), bool)
    want[0, 2, 1] = True
    assert (np.isnan(got).any(-1) == want).all()
    q, k, v, learned = inputs(mechanism, T=7, S=7)
    real = jnp.asarray([True] * 6 + [False])
    mask = Padding(keys=jnp.stack([real, jnp.ones(7, bool)]))
    few = Nystrom(landmarks=6)  # of row 0 only, where each key is a landmark too
    got = run(few, q.at[:, 2, 1].set(jnp.inf), k, v, learned, mask)
    want = np.zeros((2, 7, 4), bool)
    want[0, 2, 1] = want[1, :, 1] = True
    assert (np.isnan(got).any(-1) == want).all()


@pytest.mark.parametrize("landmarks", [12, 13, 64])
def test_as_many_landmarks_as_tokens_are_exact_softmax(landmarks):
    q, k, v, _ = inputs(Nystrom(), T=12, S=12)
    w = attn.dot_product_attention(q, k, v)
    got = run(Nystrom(landmarks=landmarks), q, k, v, {})
    np.testing.assert_allclose(got, w, atol=1e-5)


def test_more_iterations_and_more_landmarks_come_closer():
    q, k, v, _ = inputs(Nystrom(), T=64, S=64, scale=0.5)
    exact = double(attn.dot_product_attention(q, k, v))
    error = lambda m: np.sqrt(np.mean((run(m, q, k, v, {}) - exact) ** 2))
    by_landmarks = [error(Nystrom(landmarks=m, iterations=20)) for m in (2, 16, 64)]
    assert by_landmarks[0] > by_landmarks[1] > by_landmarks[2]
    a = softmax(2 * np.random.default_rng(0).normal(size=(3, 8, 8)))
    off = []
    for n in (1, 3, 6, 12):
        z = double(pseudo_inverse(jnp.asarray(a, jnp.float32), n))
        off.append(np.abs(a @ z - np.eye(8)).max())
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-3


def test_segments_are_as_even_as_may_be():
    seen = jnp.ones((1, 11), bool)
    sizes = (np.asarray(averages(seen, 4, jnp.float32)) > 0).sum(-1)
    assert sizes.tolist() == [[3, 3, 3, 2]]
    few = np.asarray(averages(seen & (jnp.arange(11) % 5 == 0), 4, jnp.float32))
    assert np.argwhere(few[0]).tolist() == [[0, 0], [1, 5], [2, 10]]


def test_the_inverse_of_a_batch_row_does_not_depend_on_its_neighbours():
    mechanism = Nystrom(landmarks=4, iterations=1)
    q, k, v, _ = inputs(mechanism, T=16, S=16)
    both, alone = run(mechanism, q, k, v, {}), run(mechanism, q[:1], k[:1], v[:1], {})
    np.testing.assert_allclose(both[0], alone[0], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"landmarks": 0}, "landmarks"),
        ({"landmarks": -1}, "landmarks"),
        ({"landmarks": 2.0}, "landmarks"),
        ({"iterations": 0}, "iterations"),
        ({"conv_kernel": 4}, "conv_kernel"),
        ({"conv_kernel": 0}, "conv_kernel"),
    ],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(ValueError, match=name):
        Nystrom(**settings)


def test_bad_arrays_are_named():
    q, k, v, _ = inputs(Nystrom(), T=6, S=6)
    with pytest.raises(ValueError, match=r"conv: expected \[2, 3\], got nothing"):
        Nystrom(conv_kernel=3)(q, k, v)
    with pytest.raises(TypeError, match="conv: Nystrom takes no learned arrays or gates"):
        Nystrom()(q, k, v, conv=jnp.ones((2, 3)))
    for shape in ((3, 3), (2, 4), (2,)):
        with pytest.raises(ValueError, match="conv: expected"):
            nystrom_attention(q, k, v, conv=jnp.ones(shape))
    with pytest.raises(ValueError, match="landmarks"):
        nystrom_attention(q, k, v, landmarks=0)
    with pytest.raises(NotImplementedError, match="Causal"):
        nystrom_attention(q, k, v, mask=Causal())


@pytest.mark.parametrize("shape", [{"S": 0}, {"T": 0}, {"batch": (0,)}])
def test_empty_arrays(shape):
    mechanism = Nystrom(landmarks=2, conv_kernel=3)
    q, k, v, learned = inputs(mechanism, **shape)
    out = run(mechanism, q, k, v, learned)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    assert (out == 0).all()
