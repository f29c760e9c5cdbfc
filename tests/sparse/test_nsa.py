"""NSA: three branches in loops; selection is shared by a key head's queries and holds the past."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, Padding
from attn.sparse import _coarse_to_fine
from attn.sparse._coarse_to_fine import CoarseToFine
from attn.sparse.nsa import NSA, nsa_attention
from attn.testing import inputs

SMALL = NSA(
    compression_block=4, compression_stride=2, selection_block=4, selected=3, local=1, window=3
)
SHAPES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
APART = ("selected_k", "selected_v", "near_k", "near_v")
SIZES = {"compression_block": 6, "compression_stride": 2, "selection_block": 4}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_loops(m, q, k, v, real, gate, arrays):
    """The definition in loops over queries, of right-padded keys."""
    branch = lambda x, name: np.asarray(arrays.get(name, x), np.float64)
    fine_k, fine_v = branch(k, "selected_k"), branch(v, "selected_v")
    near_k, near_v = branch(k, "near_k"), branch(v, "near_v")
    arrays = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    q, k, v, gate = (np.asarray(x, np.float64) for x in (q, k, v, gate))
    (B, T, N, H), (S, K) = q.shape, k.shape[1:3]
    G, d, size, length = N // K, m.compression_stride, m.selection_block, m.compression_block
    out = np.zeros((B, T, N, v.shape[-1]))

    def compressed(x, name, b, g, c):
        position, up, down = (arrays[f"{name}_{a}"][g] for a in ("position", "up", "down"))
        run = x[b, c * d : c * d + length, g] + position
        return gelu(np.einsum("lw,lwe->e", run, up)) @ down

    for b, g in np.ndindex(B, K):
        runs = [c for c in range(S) if c * d + length <= S and real[b, c * d :][:length].all()]
        ck = {c: compressed(k, "key", b, g, c) for c in runs}
        cv = {c: compressed(v, "value", b, g, c) for c in runs}
        for t in range(min(T, S)):
            past = [c for c in runs if c * d + length - 1 <= t]
            heads = range(g * G, (g + 1) * G)
            weight = dict.fromkeys(range(-length, S + size), 0.0)
            for n in heads:
                if past:
                    p = softmax(np.array([q[b, t, n] @ ck[c] for c in past]) / H**0.5)
                    out[b, t, n] += gate[b, t, n, 0] * sum(x * cv[c] for x, c in zip(p, past))
                    for x, c in zip(p, past):
                        weight[c] += x
            # equation 9, its indices from 0
            mass = {
                j: sum(
                    weight[size // d * j + a - e]
                    for a in range(size // d)
                    for e in range(length // d)
                )
                for j in range(t // size + 1)
            }
            fixed = [j for j in mass if j < m.initial or j > t // size - m.local]
            ranked = sorted((j for j in mass if j not in fixed), key=lambda j: -mass[j])
            ranked = [j for j in ranked if real[b, j * size : (j + 1) * size].any()]
            chosen = (fixed + ranked)[: m.selected]
            fine = [j for j in range(t + 1) if real[b, j] and j // size in chosen]
            near = [j for j in range(t + 1) if real[b, j] and j > t - m.window]
            for n in heads:
                for branch, keys, x, y in ((1, fine, fine_k, fine_v), (2, near, near_k, near_v)):
                    if keys:
                        p = softmax(x[b, keys, g] @ q[b, t, n] / H**0.5)
                        out[b, t, n] += gate[b, t, n, branch] * (p @ y[b, keys, g])
    return out


OTHER = NSA(**SIZES, selected=4, initial=1, local=2, window=5)


@pytest.mark.parametrize("m", [SMALL, OTHER, dataclasses.replace(OTHER, separate=True)])
@pytest.mark.parametrize(("T", "S"), [(23, 23), (29, 26), (5, 3)])
def test_equals_loops_with_padding(m, T, S):
    q, k, v, learned = inputs(m, T=T, S=S, scale=2.0)
    gate = learned.pop("gate")
    real = np.arange(S) < np.array([[S - 3], [S]])
    fill = lambda x: jnp.where(real[..., None, None], x, jnp.nan)
    mask = Causal() & Padding(jnp.asarray([S - 3, S]))
    filled = {n: fill(x) if n in APART else x for n, x in learned.items()}
    out = jax.jit(m)(q, fill(k), fill(v), mask=mask, gate=gate, **filled)
    want = by_loops(m, q, k, v, real, gate, learned)
    np.testing.assert_allclose(out, want, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_heads_that_ask_the_same_select_as_if_key_heads_were_repeated():
    """Selection is summed over the query heads of a key head, so repeating key heads changes it,
    except where those query heads are equal."""
    q, k, v, learned = inputs(SMALL, T=37, S=37)
    run = jax.jit(lambda q, k, v, **arrays: SMALL(q, k, v, mask=Causal(), **arrays))
    double = lambda x, axis: jnp.repeat(x, 2, axis)
    more = {n: x if n == "gate" else double(x, 0) for n, x in learned.items()}
    same = double(q[:, :, ::2], -2)
    one = run(same, k, v, **learned)
    np.testing.assert_allclose(run(same, double(k, -2), double(v, -2), **more), one, atol=2e-6)
    other = run(q, double(k, -2), double(v, -2), **more) - run(q, k, v, **learned)
    assert abs(other).max() > 1e-2


def test_as_many_blocks_as_there_are_select_all():
    """With a gate of the selected branch alone it is softmax attention."""
    m = NSA(**SIZES, selected=6)
    q, k, v, learned = inputs(m)
    learned["gate"] = jnp.zeros_like(learned["gate"]).at[..., 1].set(1)
    call = functools.partial(nsa_attention, **SIZES, selected=6)
    out = jax.jit(call)(q, k, v, mask=Causal(), **learned)
    want = jax.jit(attn.dot_product_attention)(q, k, v, mask=Causal())
    np.testing.assert_allclose(out, want, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_branches_with_the_same_keys_and_values_are_those_that_share_them():
    apart = dataclasses.replace(SMALL, separate=True)
    q, k, v, learned = inputs(apart)
    shared = {name: x for name, x in learned.items() if name not in APART}
    same = dict(zip(APART, (k, v, k, v)))
    want = jax.jit(SMALL)(q, k, v, mask=Causal(), **shared)
    out = jax.jit(apart)(q, k, v, mask=Causal(), **shared, **same)
    np.testing.assert_array_equal(out, want)
    sizes = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    del sizes["separate"]
    other = nsa_attention(q, k, v, mask=Causal(), **sizes, **learned)
    np.testing.assert_allclose(other, jax.jit(apart)(q, k, v, mask=Causal(), **learned), atol=2e-6)
    assert abs(other - want).max() > 0.1
    with pytest.raises(ValueError, match="near_v"):
        nsa_attention(q, k, v, mask=Causal(), **sizes, **shared, **dict(list(same.items())[:3]))


@pytest.mark.slow
def test_a_ring_of_the_window_is_enough_to_decode_with():
    apart = dataclasses.replace(SMALL, separate=True)
    q, k, v, learned = inputs(apart, T=13, S=13)
    want = jax.jit(apart)(q, k, v, mask=Causal(), **learned)
    of_tokens = {*APART, "gate"}
    cut = lambda a, b: {n: x[:, a:b] if n in of_tokens else x for n, x in learned.items()}
    states = {0: apart.init_state((2,), **SHAPES, max_length=13)}
    for T in (2, 7):  # shorter than the ring, which is then partly empty, and longer
        prompt = (x[:, :T] for x in (q, k, v))
        states[T], _ = apart.prefill(*prompt, max_length=13, **cut(0, T))
    step = jax.jit(apart.step)
    for T, state in states.items():
        assert state.apart[1].k.shape[-2] == SMALL.window
        for t in range(T, 13):
            state, out = step(state, *(x[:, t : t + 1] for x in (q, k, v)), **cut(t, t + 1))
            np.testing.assert_allclose(out, want[:, t : t + 1], rtol=0, atol=2e-6)


@pytest.mark.slow
def test_chunks_equal_one_chunk(replaced):
    q, k, v, learned = inputs(SMALL, T=37, S=37)
    run = lambda: jax.jit(lambda q, k, v: SMALL(q, k, v, mask=Causal(), **learned))(q, k, v)
    whole = run()
    for engine in (NSA._attend, CoarseToFine.attend):  # one in the other
        replaced(engine, _coarse_to_fine, "chunk_size", lambda numbers, T: 8)
    np.testing.assert_allclose(run(), whole, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_a_step_compresses_one_run():
    """Its work is that of what it reads, not of making all compressed keys again."""
    m = NSA(compression_block=8, compression_stride=4, selection_block=8, selected=4, window=8)
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "value_dim": 32}
    q, k, v, learned = inputs(m, batch=(1,), T=1, S=1, N=2, K=1, H=32, D=32)

    state = m.init_state((1,), **sizes, max_length=2048)
    step = jax.jit(m.step).lower(state, q, k, v, **learned).compile()
    runs = state.k.shape[-2]
    to_compress_all = 2 * runs * (8 + 1) * (32 * 32 + 32 * 32)
    assert step.cost_analysis()["flops"] < to_compress_all / 10


@pytest.mark.slow
def test_a_step_is_nan_where_it_sees_what_is_not_finite():
    q, k, v, learned = inputs(SMALL, T=13, S=13)
    gate = learned.pop("gate").at[..., 2].set(0)  # the window is looked at in other tests
    v = v.at[0, 5].set(jnp.nan)
    want = jax.jit(SMALL)(q, k, v, mask=Causal(), gate=gate, **learned)
    step = jax.jit(SMALL.step)
    state = SMALL.init_state((2,), **SHAPES, max_length=13)
    for t in range(13):
        at = lambda x, t=t: x[:, t : t + 1]
        state, out = step(state, at(q), at(k), at(v), gate=at(gate), **learned)
        np.testing.assert_allclose(out, at(want), rtol=0, atol=2e-6)
    assert np.isnan(want[0]).any()
    assert np.isfinite(want[1]).all()


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"window": 0}, "window"),
        ({"selected": -1}, "selected"),
        ({"selected": 2}, "selected"),
        ({"compression_stride": 0}, "compression_stride"),
        ({"compression_stride": 5}, "compression_block"),
        ({"selection_block": 40}, "selection_block"),
        ({"local": 0}, "local"),
        ({"initial": True}, "initial"),
        ({"selected": True}, "selected"),
    ],
)
def test_bad_settings_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        NSA(**bad)


def test_bad_arrays_are_named():
    q, k, v, learned = inputs(SMALL)
    call = lambda **arrays: SMALL(q, k, v, mask=Causal(), **arrays)
    for name in ("gate", "key_up", "value_down"):
        with pytest.raises(ValueError, match=name):
            call(**{**learned, name: learned[name][..., :-1]})
    with pytest.raises(ValueError, match="value_up"):
        call(**{name: x for name, x in learned.items() if name != "value_up"})
    with pytest.raises(NotImplementedError, match="Causal"):
        SMALL(q, k, v, **learned)


def test_learned_arrays_and_gates_get_a_gradient():
    q, k, v, learned = inputs(SMALL)
    loss = lambda a: (SMALL(q, k, v, mask=Causal(), **a) ** 2).sum()
    grads = jax.jit(jax.grad(loss))(learned)
    assert all((np.asarray(g) != 0).any() for g in grads.values()), grads.keys()


def test_a_step_in_bfloat16_promotes_nothing_without_a_word():
    """The poison of its cache, in bfloat16, met that of what overflows, in float32."""
    nsa = NSA.examples()[0]
    q, k, v, arrays = inputs(nsa, T=1, S=1, dtype=jnp.bfloat16)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6, "max_length": 9}

    def step():
        return nsa.step(nsa.init_state((2,), **sizes, dtype="bfloat16"), q, k, v, **arrays)[1]

    with jax.numpy_dtype_promotion("strict"):
        assert jax.eval_shape(step).dtype == jnp.bfloat16
