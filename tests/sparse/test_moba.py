"""MoBA: each query attends to its own block and to those before it whose mean it scores highest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, Padding
from attn.sparse import _chosen
from attn.sparse.moba import MoBA, moba_attention
from attn.testing import inputs


def by_loops(m, q, k, v, real, causal):
    """The definition in loops, a set of blocks a query: (output, the sets)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, T, N, H), (S, G) = q.shape, (k.shape[1], q.shape[2] // k.shape[2])
    out, sets = np.zeros((B, T, N, v.shape[-1])), {}
    blocks = [range(a, min(a + m.block_size, S)) for a in range(0, S, m.block_size)]
    for b, t, n in np.ndindex(B, T, N):
        score = {}
        for c, block in enumerate(blocks):
            held = [j for j in block if real[b, j]]
            if held and not (causal and c >= t // m.block_size):
                score[c] = q[b, t, n] @ k[b, held, n // G].mean(0)
        own = [t // m.block_size] if causal and t // m.block_size < len(blocks) else []
        ranked = sorted(score, key=lambda c: -score[c])
        chosen = set((own + ranked)[: m.top])
        sees = [j for c in sorted(chosen) for j in blocks[c] if real[b, j]]
        sees = [j for j in sees if j <= t or not causal]
        sets[b, t, n] = chosen
        if sees:
            s = k[b, sees, n // G] @ q[b, t, n] / H**0.5
            e = np.exp(s - s.max())
            out[b, t, n] = e / e.sum() @ v[b, sees, n // G]
    return out, sets


@pytest.mark.parametrize(("T", "S", "size", "top"), [(19, 23, 4, 2), (23, 19, 5, 3), (7, 3, 8, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_loops_with_padding(T, S, size, top, causal):
    m = MoBA(block_size=size, top=top)
    q, k, v, _ = inputs(m, T=T, S=S, scale=2.0)
    real = np.ones((2, S), bool)
    real[0, S - 2 :] = False
    real[1, : S // 2 : 2] = False  # holes, and where a block is small a whole one
    real[1, : min(size, S - 1)] = False
    fill = lambda x: jnp.where(real[..., None, None], x, jnp.nan)
    mask = Padding(keys=jnp.asarray(real))
    out = jax.jit(m)(q, fill(k), fill(v), mask=mask & Causal() if causal else mask)
    np.testing.assert_allclose(out, by_loops(m, q, k, v, real, causal)[0], rtol=0, atol=3e-6)


def test_as_many_blocks_as_there_are_is_softmax():
    q, k, v, _ = inputs(MoBA())
    whole = jax.jit(attn.dot_product_attention)(q, k, v, mask=Causal())
    call = functools.partial(moba_attention, block_size=4, top=5)
    out = jax.jit(call)(q, k, v, mask=Causal())
    np.testing.assert_allclose(out, whole, rtol=0, atol=2e-6)


def test_own_block_is_chosen_without_a_score():
    """The mean of its own block holds keys of the future: however much the query dislikes or likes
    those, it sees its own block and one of those before."""
    m = MoBA(block_size=4, top=2)
    q, k, _, _ = inputs(m, batch=(1,), T=16, S=16, N=1, K=1)
    weights = jax.jit(m.weights)
    before = weights(q, k, mask=Causal())[0, 0]
    for size in (1e3, -1e3):
        moved = k.at[0, 15].set(size * q[0, 13])
        w = weights(q, moved, mask=Causal())[0, 0]
        np.testing.assert_array_equal(w[:15], before[:15])
        assert (w[13, 12:14] > 0).all()
        assert (w[13].reshape(4, 4) > 0).any(-1).sum() == 2


def test_choosing_gives_no_gradient_and_what_is_not_chosen_gets_none():
    m = MoBA(block_size=4, top=2)
    q, k, v, _ = inputs(m, batch=(1,), T=16, S=16, N=1, K=1)
    grad = jax.jit(jax.grad(lambda k: (m(q, k, v, mask=Causal())[0, 15] ** 2).sum()))(k)
    seen = jax.jit(m.weights)(q, k, mask=Causal())[0, 0, 15] > 0
    assert seen.sum() == 8
    np.testing.assert_array_equal(np.any(grad[0, :, 0] != 0, -1), seen)


@pytest.mark.slow
def test_chunks_equal_one_chunk(replaced):
    m = MoBA(block_size=4, top=3)
    q, k, v, _ = inputs(m, T=37, S=37)
    run = lambda: jax.jit(lambda q, k, v: m(q, k, v, mask=Causal()))(q, k, v)
    whole = run()
    replaced(MoBA.attend, _chosen, "chunk_size", lambda numbers, T: 8)
    np.testing.assert_allclose(run(), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("m", [MoBA(), attn.Quest(), attn.Softmax()], ids=repr)
def test_a_state_for_no_tokens_says_so(m):
    # neither of the first two could be made, and a step from others named a slice of JAX's
    q, k, v, _ = inputs(m, T=1, S=1)
    state, out = m.prefill(q[:, :0], k[:, :0], v[:, :0], max_length=0)
    assert out.shape == (2, 0, 4, 6)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6, "max_length": 0}
    shapes = lambda x: jax.tree.map(jnp.shape, x)
    assert shapes(m.init_state((2,), **sizes)) == shapes(state)
    with pytest.raises(ValueError, match="state: expected one with room for a token"):
        m.step(state, q, k, v)


@pytest.mark.parametrize("name", ["block_size", "top"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        MoBA(**{name: value})
    with pytest.raises(ValueError, match=name):
        moba_attention(*inputs(MoBA())[:3], **{name: value})


def test_segments_are_refused():
    q, k, v, _ = inputs(MoBA())
    ids = jnp.zeros((2, 19), jnp.int32)
    with pytest.raises(NotImplementedError, match="Segments"):
        moba_attention(q, k, v, mask=attn.Segments(ids, ids))


@pytest.mark.parametrize("size", [1.0, 3e38])
def test_the_mean_of_equal_values_is_that_value(size):
    q, k, v, _ = inputs(MoBA())
    out = jax.jit(MoBA(block_size=2, top=6))(q, k, jnp.full_like(v, size), mask=Causal())
    np.testing.assert_allclose(out, size, rtol=1e-5)
