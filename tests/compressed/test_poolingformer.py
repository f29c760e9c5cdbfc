"""Poolingformer against loops in NumPy, what enters its pools, and who sees them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import FULL, Causal, Padding, Segments
from attn.compressed._runs import Within
from attn.compressed.poolingformer import Poolingformer, poolingformer_attention
from attn.testing import check_mask, inputs

run = jax.jit(lambda m, q, k, v, g, mask: m(q, k, v, mask=mask, **g), static_argnums=0)

WIDER = Poolingformer(window=3, pool_window=9, kernel=5, stride=2)
EVERY = [*Poolingformer.examples(), WIDER]


def softmax(s):
    e = np.exp(np.asarray(s) - max(s))
    return e / e.sum()


def pooled(x, p, how):
    """One pool of a list of vectors, None for those that are not there."""
    there = [c for c, row in enumerate(x) if row is not None]
    if how == "max":
        return np.max([x[c] for c in there], axis=0)
    middle = x[(len(x) - 1) // 2]
    score = np.zeros(len(x)) if how == "mean" or middle is None else middle @ p
    w = softmax([score[c] for c in there])
    return sum(a * x[c] for a, c in zip(w, there))


def oracle(m, q, k, v, learned, *, keys, asks=None, offset=None):
    """One batch row, q [T, N, H]; `keys` are the tokens that are there, `asks` the queries, and
    `offset` that of Causal."""
    (T, N, H), (S, K, D) = q.shape, v.shape
    asks = range(T) if asks is None else asks
    out = np.zeros((T, N, D))
    for n in range(N):
        kh, W = n // (N // K), {name: x[n] for name, x in learned.items()}
        y = {}
        for t in asks:
            near = [
                s for s in keys if abs(s - t) <= m.window and (offset is None or s <= t + offset)
            ]
            if near:
                w = softmax([q[t, n] @ k[s, kh] / np.sqrt(H) for s in near])
                y[t] = sum(a * v[s, kh] for a, s in zip(w, near))
        # what is in pools: the first level of tokens that are there
        token = {t: x for t, x in y.items() if T != S or t in keys}
        pools = {}
        for first in range(0, T, m.stride):
            members = range(first, first + m.kernel)
            if any(t in token for t in members):
                of = lambda name, p, members=members: pooled(
                    [token[t] @ W[name] if t in token else None for t in members], p, m.pool
                )
                pk = of("key_projection", W.get("key_pool"))
                pools[first] = pk, of("value_projection", W.get("value_pool"))
        for t, x in y.items():
            reach = t + m.pool_window if offset is None else t
            seen = [
                kv
                for first, kv in pools.items()
                if first >= t - m.pool_window and first + m.kernel - 1 <= reach
            ]
            out[t, n] = x
            if seen:
                w = softmax([x @ W["query_projection"] @ key / np.sqrt(H) for key, _ in seen])
                out[t, n] += sum(a * value for a, (_, value) in zip(w, seen))
    return out


def exact(x):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), x)


def off(m, *, T=13, S=13, offset=None, keys=None, asks=None):
    """The largest difference from the oracle, over two batch rows with other tokens there."""
    q, k, v, learned = inputs(m, T=T, S=S)
    keys = [list(range(S)), [0, 1, 4, 5, 6, 9, 10]] if keys is None else keys
    there = jnp.asarray([[s in row for s in range(S)] for row in keys])
    asked = None if asks is None else jnp.asarray([[t in asks for t in range(T)]] * 2)
    mask = (FULL if offset is None else Causal(offset)) & Padding(keys=there, queries=asked)
    k, v = (jnp.where(there[..., None, None], x, bad) for x, bad in ((k, jnp.nan), (v, jnp.inf)))
    with jax.default_matmul_precision("highest"):
        got = run(m, q, k, v, learned, mask)
    q, k, v, learned = exact((q, k, v, learned))
    how = {"offset": offset, "asks": asks}
    want = [oracle(m, q[b], k[b], v[b], learned, keys=keys[b], **how) for b in range(2)]
    return np.abs(np.asarray(got) - want).max()


@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
@pytest.mark.parametrize("offset", [None, 0, 3, -2])
def test_it_is_the_papers_two_levels(mechanism, offset):
    assert off(mechanism, offset=offset) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [EVERY[0], EVERY[1]], ids=repr)
@pytest.mark.parametrize("shape", [{"T": 9, "S": 13}, {"T": 13, "S": 9}, {"T": 1, "S": 1}])
def test_pools_are_of_the_queries_where_there_are_more_or_fewer(mechanism, shape):
    keys = [list(range(shape["S"])), [0]]
    for offset in (None, 0):
        assert off(mechanism, **shape, keys=keys, offset=offset) < 2e-5


@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_a_query_that_is_not_there_is_in_no_pool(mechanism):
    assert off(mechanism, asks=[0, 1, 2, 6, 7, 11, 12]) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["dynamic", "mean", "max"])
def test_settings_larger_than_the_sequence_are_one_pool(pool):
    for size in (9, 40):
        m = Poolingformer(window=99, pool_window=99, kernel=size, stride=size, pool=pool)
        assert off(m, T=6, S=6, keys=[[0, 1, 2, 3, 4, 5], [1, 2]]) < 2e-5
    far = Poolingformer(window=2**30, pool_window=2**30, kernel=2**30, stride=2**30, pool="mean")
    near = dataclasses.replace(far, kernel=6, stride=6)
    q, k, v, learned = inputs(far, T=6, S=6)
    same = (run(m, q, k, v, learned, FULL) for m in (far, near))
    np.testing.assert_array_equal(*same)


class PoolsPadding(Poolingformer):
    def _pools(self, k, v, seen, learned):
        return super()._pools(k, v, jnp.ones_like(seen), learned)


class SeesAPoolEarly(Poolingformer):
    def _far(self, T, right):
        return dataclasses.replace(super()._far(T, right), right=right + 1)


class SeesAPoolLate(Poolingformer):
    def _far(self, T, right):
        return dataclasses.replace(super()._far(T, right), left=self.pool_window - 1)


class PoolsTheFirstOfARun(Poolingformer):
    def _far(self, T, right):
        return dataclasses.replace(super()._far(T, right), kernel=1)


WRONG = [PoolsPadding, SeesAPoolEarly, SeesAPoolLate, PoolsTheFirstOfARun]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("offset", [None, 0])
def test_a_wrong_one_is_seen(kind, offset):
    assert off(kind(**dataclasses.asdict(EVERY[0])), offset=offset) > 1e-2


def shown_too_early(m, T=13):
    """The tokens whose output changes with what comes after them."""
    q, k, v, learned = inputs(m, T=T, S=T)
    out = run(m, q, k, v, learned, Causal())
    later = lambda x, t: x.at[:, t + 1 :].multiply(jnp.nan)
    again = lambda t: run(m, *(later(x, t) for x in (q, k, v)), learned, Causal())[:, : t + 1]
    return [t for t in range(T) if not np.array_equal(again(t), out[:, : t + 1])]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_no_token_shows_before_it_is_there(mechanism):
    """The law tries three tokens, of which none may be the one before a pool's last."""
    assert shown_too_early(mechanism) == []


@pytest.mark.slow
def test_a_pool_seen_before_its_last_token_is_noticed():
    # pools of 0-3, 2-5 and so on, seen by the token before their last
    assert shown_too_early(SeesAPoolEarly(**dataclasses.asdict(EVERY[0]))) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("mask", [FULL, Causal()], ids=repr)
def test_padding_equals_the_shorter_sequence_alone(mask):
    q, k, v, learned = inputs(WIDER, T=17, S=17, batch=(2,))
    lengths = [17, 8]
    got = run(WIDER, q, k, v, learned, mask & Padding(jnp.array(lengths)))
    for row, n in enumerate(lengths):
        alone = run(WIDER, *(x[row, :n] for x in (q, k, v)), learned, mask)
        np.testing.assert_allclose(got[row, :n], alone, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [FULL, Causal(), Causal() & Padding(jnp.array([550]))], ids=repr)
def test_long_sequences_equal_the_definition_by_strips(mask):
    """Past 512 tokens the engine takes other ways, by which blocks `Within` touches."""
    m = Poolingformer(window=20, pool_window=70)
    q, k, v, learned = inputs(m, T=600, S=600, batch=(1,))
    both = jax.jit(lambda *a: (m(*a, mask=mask, **learned), m.reference(*a, mask=mask, **learned)))
    np.testing.assert_allclose(*both(q, k, v), atol=2e-5)


@pytest.mark.parametrize("term", [Within(5, 4, 12, 12), Within(5, 4, 12, 0), Within(3, 1, 2, 7)])
def test_the_blocks_of_a_mask_of_pools_are_those_it_touches(term):
    T, P = 37, 11
    whole = term.array(T, P)
    for i, j in np.ndindex(T, P):
        first, last = j * term.stride, j * term.stride + term.kernel - 1
        assert whole[i, j] == (i - term.left <= first and last <= i + term.right)
    check_mask(term, T, P)
    assert term.blocks(T, P, 1, 1)[0].sum() == term.blocks(T, P, 1, 1)[1].sum() == whole.sum()


def test_a_pool_is_seen_from_its_last_token_on():
    #                   pools of 0-2, 2-4, 4-6, 6-8 (which is not whole)
    drawn = Within(3, 2, 4, 0).draw(7, 4).replace(" ", "").splitlines()
    assert drawn == ["....", "....", "#...", "#...", "##..", ".#..", ".##."]


@pytest.mark.slow
def test_what_is_not_finite_shows_in_those_that_see_it_alone():
    """Key 5 of the second key head: by the window 3 to 7, by pools of these those further off."""
    m = EVERY[1]  # pools of three tokens, window 3, and 9
    q, k, v, learned = inputs(m, T=31, S=31, K=4)
    for mask in (FULL, Causal()):
        for spoilt in ((k.at[:, 5, 1].set(jnp.nan), v), (k, v.at[:, 5, 1].set(jnp.inf))):
            lost = np.isnan(run(m, q, *spoilt, learned, mask)).any(-1)
            near = range(5, 9) if mask != FULL else range(2, 9)
            pools = [p for p in range(0, 31, 3) if {p, p + 1, p + 2} & set(near)]
            right = 9 if mask == FULL else 0
            far = {t for t in range(31) for p in pools if t - 9 <= p and p + 2 <= t + right}
            want = np.zeros((31, 4), bool)
            want[sorted(far | set(near)), 1] = True
            assert (lost == want).all()
        loss = lambda v, mask=mask: jnp.nan_to_num(m(q, k, v, mask=mask, **learned)).sum()
        assert np.isfinite(jax.jit(jax.grad(loss))(v.at[:, 5, 1].set(jnp.inf))).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"window": -1}, "window"),
        ({"pool_window": -1}, "pool_window"),
        ({"kernel": 0}, "kernel"),
        ({"stride": 0}, "stride"),
        ({"stride": 6}, "kernel: expected at least stride=6"),
        ({"pool": "conv"}, "pool: expected one of dynamic, mean, max"),
    ],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(ValueError, match=name):
        Poolingformer(**settings)


def test_bad_arrays_and_masks_are_named():
    q, k, v, learned = inputs(Poolingformer())
    for name in learned:
        rest = {other: x for other, x in learned.items() if other != name}
        with pytest.raises(ValueError, match=f"^{name}: expected .*, got nothing"):
            Poolingformer()(q, k, v, **rest)
    with pytest.raises(TypeError, match=r"^key_pool: Poolingformer takes key_projection, query_"):
        poolingformer_attention(q, k, v, **learned, pool="max")
    with pytest.raises(ValueError, match=r"^key_pool: expected \[4, 8, 3\], got \[4, 8, 5\]"):
        poolingformer_attention(q, k, v, **learned, kernel=3, stride=3)
    np.testing.assert_array_equal(
        poolingformer_attention(q, k, v, **learned), Poolingformer()(q, k, v, **learned)
    )
    sizes = {"num_heads": -4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6, "max_length": 9}
    # its second level has a key head for each query head, which was named
    with pytest.raises(ValueError, match=r"^num_heads: expected an integer from 0 to .*, got -4"):
        Poolingformer().init_state((2,), **sizes)
    ids = jnp.zeros(q.shape[:2], int)
    with pytest.raises(NotImplementedError, match="Segments"):
        poolingformer_attention(q, k, v, mask=Segments(ids, ids), **learned)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_decoding_spreads_what_is_not_finite_and_tells_when_it_forgot(mechanism):
    q, k, v, learned = inputs(mechanism, T=13, S=13, batch=())
    spoilt = k.at[4, 1].set(jnp.nan)
    want = run(mechanism, q, spoilt, v, learned, Causal())
    state, first = mechanism.prefill(q[:2], spoilt[:2], v[:2], max_length=12, **learned)
    step, outs = jax.jit(mechanism.step), [first]
    for t in range(2, 13):
        state, out = step(state, *(x[t : t + 1] for x in (q, spoilt, v)), **learned)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs)[:12], want[:12], atol=1e-5)
    assert np.isnan(want[4:, 2:]).any()
    assert not np.isnan(want[:4]).any()
    assert not np.isnan(want[:, :2]).any()
    assert np.isnan(outs[-1]).all()
    with pytest.raises(ValueError, match="q: expected one token"):
        mechanism.step(state, q, k, v, **learned)


@pytest.mark.parametrize("mask", [FULL, Causal()], ids=["both ways", "causal"])
def test_a_projection_that_overflows_reaches_no_gradient_of_other_rows(mask):
    mechanism = EVERY[0]
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    loss = lambda q, k, v, g: (mechanism(q, k, v, mask=mask, **g)[0] ** 2).sum()
    grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    large = v.at[1].set(3e38 * jnp.sign(v[1]))
    dirty, clean = grad(q, k, large, learned), grad(q, k, v, learned)
    for x, y in zip(
        jax.tree.leaves((dirty[0][0], dirty[3])), jax.tree.leaves((clean[0][0], clean[3]))
    ):
        np.testing.assert_array_equal(x, y)
