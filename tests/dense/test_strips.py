"""The engine's form for sliding windows: what the laws ask, at lengths where it is not chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Causal, Padding, Window, _forms, _strips
from attn.testing import check, inputs

OF_ARITHMETIC = ["any_length_works", "transforms_agree"]
OF_A_COMPILER = [
    pytest.param(law, marks=pytest.mark.optimised)
    for law in ("is_strictly_causal", "sees_nothing_gives_zero")
]
SLOW = [
    pytest.param("equals_reference", marks=pytest.mark.slow),
    pytest.param("does_not_leak", marks=[pytest.mark.slow, pytest.mark.optimised]),
]


@pytest.fixture
def by_strips(monkeypatch):
    """Every call without a block runs by strips of blocks of 8 queries."""

    def choose(mask, T, S, N, B=1):
        return "strips", (8, _strips.strips(mask, T, S, 8)[1])

    monkeypatch.setattr(_forms, "choose", choose)
    monkeypatch.setattr(_strips, "STEP", 4)
    monkeypatch.setattr(_strips, "LONG", 5)  # turns of several strips too


@pytest.mark.slow
@pytest.mark.usefixtures("by_strips")
@pytest.mark.parametrize("law", OF_ARITHMETIC + OF_A_COMPILER + SLOW)
def test_laws_hold(law):
    check(attn.SlidingWindow(left=3, right=2), only=[law]).raise_if_broken()


@pytest.mark.slow
@pytest.mark.usefixtures("by_strips")
@pytest.mark.parametrize("name", ["t5", "array", "none"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_bias_dropout_and_cap_equal_the_materialized_ones(name, rate):
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    normal = lambda *shape: jnp.asarray(np.random.default_rng(5).normal(size=shape), jnp.float32)
    bias = {"t5": attn.Relative(normal(32, 4)), "array": normal(2, 4, 45, 45), "none": None}[name]
    mask = Window(9, 4) & Padding(jnp.array([13, 45]))
    options = {"mask": mask, "dropout_rate": rate, "logit_cap": 4.0}
    options["dropout_key"] = jax.random.key(1) if rate else None

    def run(implementation):
        def loss(q, k, v, bias):
            more = {"bias": bias, "implementation": implementation}
            return (attn.dot_product_attention(q, k, v, **more, **options) ** 2).sum()

        return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, bias))

    for want, got in zip(run("materialized"), run("blockwise")):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_strips_hold_all_that_is_seen():
    for mask in (Window(5, 0), Window(0, 9), Causal() & Window(3, 3), Causal(-20) & Window(40, 0)):
        starts, width = _strips.strips(mask, 203, 190, 16)
        seen = mask.array(203, 190)
        for a, start in enumerate(starts):
            rows = seen[16 * a : 16 * a + 16]
            assert rows.sum() == rows[:, start : start + width].sum()


def test_windows_run_by_strips_and_dense_masks_do_not():
    chosen = functools.partial(_forms.choose, T=4096, S=4096, N=4)
    assert chosen(Window(255, 0))[0] == "strips"
    assert chosen(Causal())[0] == "loops"
    assert chosen(Window(255, 0) | attn.Global((0,)))[0] == "loops"


def test_a_strip_is_no_longer_than_the_tokens_are_apart():
    bias = attn.biases.Relative(jnp.zeros((32, 2)), max_distance=100_000)
    assert bias.prepare((), 40, 24, (8, 8)).values.shape[-1] < 128


@pytest.mark.optimised
def test_temporaries_of_a_window_hold_no_copy_of_the_queries():
    # which is 17 MB at this length; a mark of infinite queries, taken before the loop, was one
    x = jax.ShapeDtypeStruct((1, 16384, 4, 64), jnp.float32)
    attend = lambda q, k, v: attn.window_attention(q, k, v, left=255, right=0)
    back = lambda q, k, v, do: jax.vjp(attend, q, k, v)[1](do)
    for run, arguments in ((attend, (x, x, x)), (back, (x, x, x, x))):
        compiled = jax.jit(run).lower(*arguments).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 20e6
