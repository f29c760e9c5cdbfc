"""Positions against their papers' formulas, and biases against arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.positions import (
    alibi_slopes,
    rotary,
    sinusoidal,
    sinusoidal_grid,
    t5_bucket,
    xpos_scale,
)


def test_a_grid_has_sinusoids_of_rows_and_of_columns():
    table = sinusoidal_grid(7, 3, 5)
    for t in range(7):
        np.testing.assert_array_equal(table[t, :2], sinusoidal(3, 2)[t // 3])
        np.testing.assert_array_equal(table[t, 2:], sinusoidal(3, 3)[t % 3])
    assert sinusoidal_grid(0, 3, 5).shape == (0, 5)
    with pytest.raises(ValueError, match=r"columns: expected an integer from 1 to .*, got 0"):
        sinusoidal_grid(7, 0, 5)
    with pytest.raises(ValueError, match=r"width: expected an integer from 2 to .*, got 1"):
        sinusoidal_grid(7, 3, 1)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("length", lambda: sinusoidal(-1, 4)),
        ("width", lambda: sinusoidal(3, 0)),
        ("length", lambda: sinusoidal_grid(-1, 3, 5)),
        ("num_heads", lambda: alibi_slopes(2.5)),
        ("num_heads", lambda: alibi_slopes(0)),
    ],
)
def test_a_size_that_is_none_is_named(name: str, make):
    with pytest.raises(ValueError, match=f"^{name}: expected an integer from"):
        make()


def test_sinusoidal_is_the_papers_formula():
    table = sinusoidal(7, 6)
    for t in range(7):
        for c in range(3):
            angle = t / 10000 ** (2 * c / 6)
            assert table[t, 2 * c] == pytest.approx(np.sin(angle), abs=1e-6)
            assert table[t, 2 * c + 1] == pytest.approx(np.cos(angle), abs=1e-6)
    assert sinusoidal(0, 6).shape == (0, 6)
    assert sinusoidal(4, 5).shape == (4, 5)


def test_a_shift_of_sinusoids_is_one_rotation_of_each_pair_wherever_it_starts():
    """The reason the paper gives for them: PE[t + s] is a linear function of PE[t]."""
    table, rate = sinusoidal(200, 8), 10000.0 ** (-np.arange(0, 8, 2) / 8)
    for shift in (1, 7, 100):
        sin, cos = table[:-shift, 0::2], table[:-shift, 1::2]
        a, b = np.sin(shift * rate), np.cos(shift * rate)
        moved = np.stack([sin * b + cos * a, cos * b - sin * a], -1).reshape(-1, 8)
        np.testing.assert_allclose(table[shift:], moved, atol=1e-6)


def test_rotary_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 8)), jnp.float32) for _ in range(2))
    turned = lambda x, t: rotary(x, jnp.array([t]))
    score = lambda i, j: float((turned(q, i) * turned(k, j)).sum())
    assert score(5, 2) == pytest.approx(score(103, 100), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)
    assert (turned(q, 0) == q).all()
    assert rotary(q.astype(jnp.bfloat16), jnp.array([3])).dtype == jnp.bfloat16


def test_the_offset_of_causal_moves_no_query():
    q, k, v, _ = attn.testing.inputs(attn.Softmax(), T=9, S=9)
    alibi = attn.Alibi(jnp.asarray(alibi_slopes(4)))
    attend = jax.jit(attn.dot_product_attention)
    whole = attend(q, k, v, mask=attn.Causal(), bias=alibi)[:, 5:]
    rows = alibi.array(9, 9)[None, :, -4:]
    near = dict(rtol=1e-5, atol=1e-5)
    mask = attn.Causal(5)
    np.testing.assert_allclose(attend(q[:, 5:], k, v, mask=mask, bias=rows), whole, **near)
    assert not np.allclose(attend(q[:, 5:], k, v, mask=mask, bias=alibi), whole, **near)
    assert (attn.Causal(5) & attn.Window(1, 0)).array(2, 9).sum() == 3  # 0; 0 and 1


def test_alibi_slopes_are_the_published_ones():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    twelve = alibi_slopes(12)
    np.testing.assert_allclose(twelve[:8], alibi_slopes(8))
    np.testing.assert_allclose(twelve[8:], alibi_slopes(16)[::2][:4])


def test_t5_buckets():
    at = lambda d, **kw: int(t5_bucket(np.array(0), np.array(d), **kw))  # d = j - i
    both = {"num_buckets": 32, "max_distance": 128, "bidirectional": True}
    assert [at(-d, **both) for d in (0, 1, 7, 8, 127, 10_000)] == [0, 1, 7, 8, 15, 15]
    assert at(1, **both) == 17
    past = {**both, "bidirectional": False}
    assert [at(-d, **past) for d in (0, 15, 16, 127, 10_000)] == [0, 15, 16, 31, 31]
    assert at(5, **past) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "bias",
    [
        attn.Alibi(jnp.asarray(alibi_slopes(4))),
        attn.Relative(jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32), 16),
        attn.ArrayBias(jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 19, 19)), "f4")),
        attn.ArrayBias(jnp.asarray(np.random.default_rng(2).normal(size=(1, 4, 19, 19)), "f4")),
        attn.ArrayBias(jnp.asarray(np.random.default_rng(3).normal(size=(2, 1, 1, 19)), "f4")),
    ],
    ids=["alibi", "t5", "array", "shared array", "key array"],
)
@pytest.mark.parametrize("block", [8, 24])
def test_blockwise_bias_and_its_gradient_equal_the_materialized_one(bias, block):
    q, k, v, _ = attn.testing.inputs(attn.Softmax())
    mask = attn.Causal() & attn.Padding(jnp.array([13, 19]))

    def loss(bias, q, block):
        name = "blockwise" if block else "materialized"
        out = attn.dot_product_attention(
            q, k, v, mask=mask, bias=bias, implementation=name, block=block, logit_cap=3.0
        )
        return (out * jnp.sin(jnp.arange(out.size)).reshape(out.shape)).sum()

    run = lambda block: jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=2)(
        bias, q, block
    )
    a, b = run(None), run(block)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def test_bad_bias_is_named():
    q, k, v, _ = attn.testing.inputs(attn.Softmax())
    for bias, error in (
        (jnp.ones((19, 19)), ValueError),
        (jnp.ones((2, 4, 19, 18)), ValueError),
        (attn.Alibi(jnp.ones(3)), ValueError),
        (jnp.ones((2, 4, 19, 19), bool), TypeError),
    ):
        with pytest.raises(error, match=r"bias|slopes"):
            attn.dot_product_attention(q, k, v, bias=bias)
    # though NumPy would broadcast it
    with pytest.raises(ValueError, match=r"all axes of \(2, 4, 19, 19\), .* got \(4, 19, 19\)$"):
        attn.dot_product_attention(q, k, v, bias=jnp.ones((4, 19, 19)))


def test_unsigned_indices_do_not_wrap_around():
    i, j = np.arange(20)[:, None], np.arange(20)
    alibi, relative = attn.Alibi(jnp.ones(2)), attn.Relative(jnp.arange(16.0).reshape(8, 2), 16)
    options = dict(num_buckets=8, max_distance=16, bidirectional=True)
    for kind in (np.uint8, np.int8, np.uint32):
        short = i.astype(kind), j.astype(kind)
        for bias in (alibi, relative):
            np.testing.assert_array_equal(bias.at(*short), bias.at(i, j))
            np.testing.assert_array_equal(bias.at(*map(jnp.asarray, short)), bias.at(i, j))
        np.testing.assert_array_equal(t5_bucket(*short, **options), t5_bucket(i, j, **options))


def test_numbers_of_buckets_that_do_not_fit_are_named():
    for buckets, both, wanted in ((3, True, "an even number >= 4"), (1, False, "a number >= 2")):
        with pytest.raises(ValueError, match=f"num_buckets: expected {wanted}, got {buckets}"):
            t5_bucket(0, 1, num_buckets=buckets, max_distance=16, bidirectional=both)
    assert t5_bucket(4, 0, num_buckets=3, max_distance=16, bidirectional=False) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("i", x) for x in (None, "x", 0.5, [1], np.ones(3), 2**40)),
        *(("j", x) for x in (True, jnp.zeros(2))),  # a distance of half a token had a bucket
        *(("num_buckets", x) for x in (None, "x", 8.0)),
        *(("max_distance", x) for x in (None, 20.5)),
        *(("bidirectional", x) for x in (None, "yes", 1)),
    ],
)
def test_odd_arguments_of_t5_bucket_are_named(name, value):
    good = {"i": 3, "j": 1, "num_buckets": 8, "max_distance": 20, "bidirectional": True}
    with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
        t5_bucket(**{**good, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("base", x) for x in (None, "x", 0, -1.0, float("nan"), jnp.ones(3))),
        *(("rates", x) for x in ("x", 1.0, np.ones((2, 2)))),
        *(
            ("scale", x)
            for x in (None, "x", float("inf"), [1], jnp.ones(3), jnp.ones((2, 5, 1, 4)))
        ),
    ],
)
def test_odd_arguments_of_rotary_are_named(name, value):
    with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
        rotary(jnp.ones((5, 2, 8)), jnp.arange(5), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("positions", x) for x in (None, 3, [1])),
        *(("half", x) for x in (None, 0, 4.0)),
        *(("centre", x) for x in (None, float("nan"), jnp.ones(5))),
    ],
)
def test_odd_arguments_of_xpos_scale_are_named(name, value):
    good = {"positions": jnp.arange(5), "half": 4, "centre": 0.0}
    with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
        xpos_scale(**{**good, name: value})
