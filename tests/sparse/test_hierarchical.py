"""Hierarchical attention against loops over pairs in NumPy, and what its cells may not let by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import FULL, Causal, Hierarchical, Padding, dot_product_attention, hierarchical_attention
from attn.testing import inputs

run = jax.jit(lambda m, q, k, v, mask: m(q, k, v, mask=mask), static_argnums=0)


def level_of(i, j, block):
    """How often both must be halved until their blocks are one or neighbours."""
    level = 0
    while abs((i >> level) // block - (j >> level) // block) > 1:
        level += 1
    return level


def oracle(q, k, v, *, block, keys, queries, offset=None):
    """One batch row, q [T, N, H]; `keys` and `queries` are those that are there."""
    (T, N, H), (K, D) = q.shape, v.shape[1:]
    out = np.zeros((T, N, D))
    for n in range(N):
        for t in queries:
            i = t + (offset or 0)
            weights, seen = [], [j for j in keys if offset is None or j <= i]
            for j in seen:
                level = level_of(i, j, block)
                cell = lambda rows, at, level=level: [r for r in rows if r >> level == at >> level]
                # queries count from the offset; of a causal cell the first asks
                asking = [r - (offset or 0) for r in cell([r + (offset or 0) for r in queries], i)]
                asks = q[asking, n].mean(0) if offset is None else q[asking[0], n]
                key = k[cell(keys, j), n // (N // K)].mean(0)
                weights.append(np.exp(asks @ key / np.sqrt(H)))
            if seen:
                out[t, n] = np.array(weights) @ v[seen, n // (N // K)] / sum(weights)
    return out


@pytest.mark.parametrize("block", [2, 6])
@pytest.mark.parametrize("offset", [None, 0, 7, -5, 41])
def test_it_is_softmax_over_means_of_cells(block, offset):
    q, k, v, _ = inputs(Hierarchical(), T=29, S=25)
    keys = [list(range(25)), [0, 1, 5, 6, 7, 12, 13, 17, 20, 23, 24]]
    queries = [list(range(29)), [0, 2, 3, 9, 10, 11, 15, 22, 26, 28]]
    there = lambda rows, n: jnp.asarray([[s in row for s in range(n)] for row in rows])
    padding = Padding(keys=there(keys, 25), queries=there(queries, 29))
    mask = padding if offset is None else Causal(offset) & padding
    with jax.default_matmul_precision("highest"):
        got = run(Hierarchical(block_size=block), q, k, v, mask)
    for row in range(2):
        arrays = [np.asarray(x[row], np.float64) for x in (q, k, v)]
        rows = {"keys": keys[row], "queries": queries[row], "offset": offset}
        np.testing.assert_allclose(got[row], oracle(*arrays, block=block, **rows), atol=2e-5)


@pytest.mark.parametrize("offset", [None, 0])
def test_queries_of_padding_are_in_no_cell(offset):
    q, k, v, _ = inputs(Hierarchical(), T=40, S=40)
    real = [list(range(5, 40)), [0, 1, 4, 6, 7, 15, 16, 21, 22, 33]]
    there = np.array([[s in row for s in range(40)] for row in real])
    mask = Padding(keys=there) if offset is None else Causal(offset) & Padding(keys=there)
    q = jnp.where(there[..., None, None], q, jnp.nan)  # as token i is query i and key i
    with jax.default_matmul_precision("highest"):
        got = run(Hierarchical(block_size=4), q, k, v, mask)
    for row in range(2):
        arrays = [np.asarray(x[row], np.float64) for x in (q, k, v)]
        rows = {"keys": real[row], "queries": real[row], "offset": offset}
        np.testing.assert_allclose(got[row], oracle(*arrays, block=4, **rows), atol=2e-5)


@pytest.mark.parametrize("mask", [FULL, Causal()], ids=repr)
def test_two_blocks_are_exact_softmax(mask):
    q, k, v, _ = inputs(Hierarchical())
    with jax.default_matmul_precision("highest"):
        got = run(Hierarchical(block_size=10), q, k, v, mask)
        np.testing.assert_allclose(got, dot_product_attention(q, k, v, mask=mask), atol=2e-6)


@pytest.mark.parametrize(
    ("mask", "at", "spoilt"),
    [(FULL, 21, range(20, 24)), (Causal(), 21, [21]), (Causal(), 20, range(20, 24))],
)
def test_a_query_that_is_nan_spoils_those_that_ask_by_it(mask, at, spoilt):
    q, k, v, _ = inputs(Hierarchical(), T=40, S=40)
    out = run(Hierarchical(block_size=4), q.at[0, at, 0].set(jnp.nan), k, v, mask)
    rows, heads = np.nonzero(np.isnan(out[0]).any(-1))
    # of its blocks, that of cells of 4 reaches what it sees; that of cells of 8 sees nothing more
    assert rows.tolist() == list(spoilt)
    assert set(heads.tolist()) == {0}


@pytest.mark.slow
def test_decoding_keeps_two_blocks_of_each_level():
    m, T = Hierarchical(block_size=2), 70
    q, k, v, _ = inputs(m, batch=(1,), T=T, S=T)
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
    state = m.init_state((1,), **shape, max_length=64)
    assert state.k.shape == (1, 5, 4, 2, 8)
    step, outs = jax.jit(m.step), []
    for t in range(T):
        state, out = step(state, q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1])
        outs.append(out)
    outs, want = jnp.concatenate(outs, 1), run(m, q, k, v, Causal())
    np.testing.assert_allclose(outs[:, :64], want[:, :64], atol=2e-5)
    assert np.isnan(outs[:, 64:]).all(), "past the levels that were kept it must not answer"


def test_bad_blocks_are_refused_by_name():
    for block in (0, 1, 3, 2.0, True):
        with pytest.raises(ValueError, match="block_size: expected an"):
            Hierarchical(block_size=block)
    q, k, v, _ = inputs(Hierarchical())
    with pytest.raises(ValueError, match="block_size: expected an even"):
        hierarchical_attention(q, k, v, block_size=5)
    with pytest.raises(ValueError, match=r"at most S \+ T = 38"):
        hierarchical_attention(q, k, v, mask=Causal(39))
