"""Chunks side by side, as on a GPU, are chunks one after another: states, documents, gradients, and
what overflows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, Padding, Segments
from attn.linearized import _stretch, _work
from attn.linearized._attend import attend
from attn.testing import assert_close, check, inputs

# of each kind of state: sums, sums with weights, decays by head and by channel, what is erased
# and what is removed
KINDS = {
    "linear": attn.Linear(chunk=4),
    "hedgehog": attn.Hedgehog(chunk=4),
    "retention": attn.Retention(chunk=4),
    "gla": attn.GLA(chunk=4),
    "gated_delta_net": attn.GatedDeltaNet(chunk=4),
    "rwkv7": attn.RWKV7(chunk=4),
}


@pytest.fixture
def side_by_side(replaced):
    """Three chunks at once, so that there are turns too."""
    replaced(attend, _work, "at_once", lambda chunk, count: min(3, count))


def named(names):
    slow = lambda name: () if name == "gla" else pytest.mark.slow
    return [pytest.param(KINDS[name], id=name, marks=slow(name)) for name in names]


@pytest.mark.parametrize("mechanism", named(KINDS))
def test_equals_one_chunk_after_another(mechanism, replaced):
    q, k, v, arrays = inputs(mechanism, T=29, S=29)
    ids = jnp.repeat(jnp.array([0, 1, 2, 5]), np.array([3, 15, 6, 5]))[None]
    mask = Causal() & Segments(ids, ids) & Padding(jnp.array([29, 24]))

    def loss(q, k, v, arrays, mask):
        out = mechanism(q, k, v, mask=mask, **arrays)
        return jnp.sin(out).sum(), out

    def both(chunks):
        replaced(attend, _work, "at_once", chunks)
        run = jax.jit(jax.grad(lambda *x: loss(*x, mask), argnums=(0, 1, 2, 3), has_aux=True))
        return run(q, k, v, arrays)

    grads, out = both(lambda chunk, count: min(3, count))
    want_grads, want = both(lambda chunk, count: 1)
    assert_close(out, want, dtype="float32", what="output")
    same = functools.partial(assert_close, dtype="float32", kind="gradient", what="a gradient")
    jax.tree.map(same, grads, want_grads)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", named(KINDS))
@pytest.mark.parametrize("law", ["is_strictly_causal", "does_not_leak"])
def test_what_overflows_stays_where_it_is_seen(mechanism, law, side_by_side):
    check(mechanism, only=[law]).raise_if_broken()


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, 3e38])
@pytest.mark.parametrize("mechanism", named(["linear", "retention", "gla"]))
def test_what_is_not_finite_goes_back_as_far_as_one_after_another(mechanism, bad, replaced):
    q, k, v, arrays = inputs(mechanism, T=29, S=29)
    ids = jnp.repeat(jnp.arange(4), np.array([4, 8, 12, 5]))[None]
    mask = Causal() & Segments(ids, ids)
    loss = lambda *x: jnp.sin(mechanism(*x, mask=mask, **arrays)).sum()
    found = []
    for chunks in (1, 3):
        replaced(attend, _work, "at_once", lambda chunk, count, n=chunks: min(n, count))
        grads = jax.jit(jax.grad(lambda *x: loss(*x), argnums=(0, 1, 2)))(q, k, v.at[0, 9].set(bad))
        found.append([np.isnan(x) for x in grads])
    for one, side in zip(*found):
        np.testing.assert_array_equal(side, one)
    of_v = found[0][2]
    assert of_v[0, 4:12].any()
    assert not of_v[0, 12:].any()
    assert not of_v[0, :4].any()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", named(["retention", "gated_delta_net"]))
def test_derivatives_of_gradients(mechanism, replaced):
    q, k, v, arrays = inputs(mechanism, T=13, S=13)
    ids = jnp.repeat(jnp.arange(3), np.array([4, 8, 1]))[None]
    mask = Causal() & Segments(ids, ids)
    slope = jax.grad(lambda k: jnp.sin(mechanism(q, k, v, mask=mask, **arrays)).sum())
    made = []
    for chunks in (1, 3):
        replaced(attend, _work, "at_once", lambda chunk, count, n=chunks: min(n, count))
        made.append(jax.jit(lambda k: jax.jvp(slope, (k,), (jnp.cos(k),))[1])(k))
    assert_close(made[1], made[0], dtype="float32", kind="gradient", what="hvp")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["number", "numbers", "matrix"])
def test_states_are_those_of_the_recurrence(kind):
    rng = np.random.default_rng(0)
    b, start = rng.normal(size=(2, 6, 3, 4, 5)), rng.normal(size=(2, 3, 4, 5))
    a = rng.uniform(size=(2, 6, 3, 1 if kind == "number" else 4, 1))
    if kind == "matrix":
        a = a * np.eye(4) - 0.3 * rng.normal(size=(2, 6, 3, 4, 4))
    a[1, 2] = 0  # a document begins

    def loop(a, b, start):
        states = [start]
        for c in range(6):
            kept = a[:, c] @ states[-1] if kind == "matrix" else a[:, c] * states[-1]
            states.append(kept + b[:, c])
        return jnp.stack(states, 1)

    with jax.enable_x64(True):
        arrays = tuple(map(jnp.asarray, (a, b, start)))
        pulled = []
        for f in (_stretch.states, loop):
            out, pull = jax.vjp(f, *arrays)
            d_a, *others = pull(jnp.cos(jnp.arange(out.size)).reshape(out.shape))
            # where a document begins nothing depends on what was before
            pulled.append((out, jnp.where((a == 0).all((-2, -1), keepdims=True), 0, d_a), *others))
        for got, want in zip(*pulled):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
