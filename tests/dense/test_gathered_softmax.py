"""The engine's form for GPUs, forced on what runs the tests: small blocks, short lists."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import at_once

import attn
from attn import Causal, Global, Padding, Segments, Window, _blockwise, _forms, _gathered
from attn.testing import inputs


@pytest.fixture(autouse=True)
def gathers(monkeypatch):
    """Every call without a block gathers: blocks of 8, lists of 16 to 32 tokens."""
    monkeypatch.setattr(_forms, "loops_are_slow", lambda: True)
    monkeypatch.setattr(_forms, "SHORT", 0)
    monkeypatch.setattr(_forms, "GATHERED", ((8, 8, 1.0), (16, 8, 1.0)))
    for name, value in (("LEAST", 16), ("MOST", 32), ("EACH", 8)):
        monkeypatch.setattr(_gathered, name, value)
    forget()
    yield
    forget()


def forget():
    """What was chosen and traced under other settings."""
    _forms._cached_choice.cache_clear()
    _blockwise._jitted.clear_cache()


def normal(*shape, seed=5):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def both(q, k, v, bias=None, learned=(0, 1, 2), **options):
    """Output, log-sum-exp and gradients: materialized, and gathered."""

    def run(implementation):
        def loss(q, k, v, bias):
            out, lse = attn.dot_product_attention(
                q, k, v, bias=bias, implementation=implementation, return_lse=True, **options
            )
            wanted = jnp.where(lse > -1e30, lse, 0)
            total = jnp.sin(out.astype(jnp.float32)).sum() + jnp.cos(wanted).sum()
            return total, (out, lse)

        grad = jax.jit(jax.value_and_grad(loss, learned, has_aux=True))
        # without the loss, a sum of what is compared, whose terms cancel
        return jax.tree.leaves(grad(q, k, v, bias))[1:]

    return run("materialized"), run("blockwise")


def assert_near(want, got, room=4e-6):
    for x, y in zip(want, got, strict=True):
        x, y = (np.asarray(a, np.float32) for a in (x, y))
        assert (np.isneginf(x) == np.isneginf(y)).all()
        x, y = (np.where(np.isneginf(a), 0, a) for a in (x, y))
        np.testing.assert_allclose(y, x, rtol=0, atol=room * max(1, np.abs(x).max()))


MASKS = {
    "full": lambda T, S: attn.FULL,
    "causal": lambda T, S: Causal(S - T),
    "window": lambda T, S: Window(9, 4),
    "global": lambda T, S: Window(9, 4) | Global((0, 77)),
    "bigbird": lambda T, S: Window(9, 9) | Global((0,)) | attn.masks.Random(4, 2, 0),
    "strided": lambda T, S: Causal() & (attn.masks.Strided(11) | Window(6, 0)),
    "padding": lambda T, S: Causal() & Padding(jnp.array([0, S // 2 + 1])),
    "segments": lambda T, S: Segments(*(jnp.arange(L)[None] // 13 % 5 for L in (T, S))),
    "nothing": lambda T, S: Causal(-T // 2),
}


LENGTHS = at_once(((1, 1), (1, 90), (37, 37), (130, 37), (130, 130)), ((130, 130),))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", at_once(MASKS, ("full", "bigbird", "padding")))
def test_each_mask_equals_the_materialized(name, lengths):
    q, k, v, _ = inputs(attn.Softmax(), T=lengths[0], S=lengths[1])
    assert_near(*both(q, k, v, mask=MASKS[name](*lengths)))


BIASES = {
    "alibi": lambda T: attn.Alibi(jnp.asarray(attn.positions.alibi_slopes(4))),
    "t5": lambda T: attn.Relative(normal(32, 4)),
    "array": lambda T: attn.ArrayBias(normal(2, 4, T, T)),
    "array, shared": lambda T: attn.ArrayBias(normal(1, 4, 1, T)),
}


@pytest.mark.slow
@pytest.mark.parametrize("learned", [(0, 1, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("name", BIASES)
def test_each_bias_equals_the_materialized(name, learned):
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    mask = Window(9, 4) | Global((20,))
    assert_near(*both(q, k, v, BIASES[name](45), learned, mask=mask), room=1e-5)


@pytest.mark.slow
def test_rows_that_are_not_used_have_second_derivatives():
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    made = []
    for name in ("materialized", "blockwise"):
        attend = functools.partial(attn.dot_product_attention, implementation=name)

        def loss(*x, attend=attend):  # 0, and so is its gradient; but not the gradient's own
            out = attend(*x)
            return jnp.square(out - jax.lax.stop_gradient(out)).sum()

        slopes = jax.grad(loss, argnums=(0, 1, 2))
        made.append(jax.jit(lambda *x, slopes=slopes: jax.jvp(slopes, x, x)[1])(q, k, v))
    assert_near(*made, room=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [Causal(), Window(9, 4) & Padding(jnp.array([13, 45]))], ids=str)
def test_dropout_and_cap_equal_the_materialized(mask):
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    options = dict(dropout_rate=0.3, dropout_key=jax.random.key(1), logit_cap=4.0)
    assert_near(*both(q, k, v, mask=mask, **options), room=1e-5)


@pytest.mark.slow
def test_groups_that_take_turns_make_the_same(monkeypatch):
    q, k, v, _ = inputs(attn.Softmax(), T=130, S=130)
    mask = Causal() & Padding(jnp.array([90, 130]))
    _, whole = both(q, k, v, mask=mask)
    forget()
    monkeypatch.setattr(_gathered, "HELD_LEAST", 0)
    monkeypatch.setattr(_gathered, "HELD", 10)
    want, turns = both(q, k, v, mask=mask)
    assert_near(want, turns)
    assert_near(whole, turns, room=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_dtypes(dtype):
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        attn.dot_product_attention(q, k, v, mask=Causal(), implementation="blockwise")
    want, got = both(q, k, v, mask=Causal())
    for x, y in zip(want, got):
        assert x.dtype == y.dtype
    assert_near(want, got, room=2 * float(jnp.finfo(dtype).eps))


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(20, 0)], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_shows_in_what_sees_it_and_nowhere_else(place, mask):
    arrays = list(inputs(attn.Softmax(), T=60, S=60)[:3])
    clean = tuple(arrays)
    arrays[place] = arrays[place].at[1, 30, 1, 0].set(jnp.nan)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def run(q, k, v):
        out = attn.dot_product_attention(q, k, v, mask=mask)
        return out.sum(), out

    (_, out), gradients = run(*arrays)
    (_, fine), _ = run(*clean)
    want = np.zeros((2, 60, 4), bool)
    if place == 0:
        want[1, 30, 1] = True
    else:
        want[1, :, 2:] = mask.array(60, 60)[:, 30, None]
    assert (np.isnan(out).all(-1) == want).all()
    assert (np.isnan(out).any(-1) == want).all()
    np.testing.assert_array_equal(out[~want], fine[~want])
    # gradients are NaN for those rows and the keys that they see
    assert (np.isnan(gradients[0]).any(-1) <= want).all()
    rows = want.reshape(2, 60, 2, 2).any(-1)
    seen = np.einsum("bih,ij->bjh", rows, mask.array(60, 60)) > 0
    for gradient in gradients[1:]:
        assert (np.isnan(gradient).any(-1) <= seen).all()
    assert np.isnan(gradients[2]).any()


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("size", [1e8, 3e38, np.nan, np.inf])
@pytest.mark.parametrize("mask", [Causal(), Causal() & (Window(20, 0) | Global((0, 50)))], ids=str)
def test_the_future_changes_no_bit(mask, size):
    q, k, v, _ = inputs(attn.Softmax(), T=60, S=60)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def past(q, k, v):
        out = attn.dot_product_attention(q, k, v, mask=mask)[:, :35]
        return (out**2).sum(), out

    spoil = lambda x: x.at[:, 35:].set(size)
    want, got = past(q, k, v), past(*map(spoil, (q, k, v)))
    jax.tree.map(np.testing.assert_array_equal, want, got)


def test_few_rows_with_many_blocks_do_not_make_all_lists_long():
    visited = np.asarray((Window(9, 4) | Global((0,))).blocks(800, 800, 8, 8)[0])
    own, at = _gathered._items(visited, 8)
    assert at.size < 1.7 * visited.sum()
    for block in range(len(visited)):
        listed = at[own == block]
        assert sorted(listed[listed < visited.shape[1]]) == list(np.flatnonzero(visited[block]))


def test_it_lowers_for_a_gpu():
    x = jax.ShapeDtypeStruct((1, 4096, 4, 64), jnp.bfloat16)
    mask = Window(128, 128) | Global((0,))
    loss = lambda q, k, v: attn.dot_product_attention(
        q, k, v, mask=mask, implementation="blockwise"
    ).sum()
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(x, x, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" not in text  # nor what adds up in an order of its own
    assert "stablehlo.scatter" not in text
