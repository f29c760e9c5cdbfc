"""Odd and wrong input has the same result, or the same error, whichever implementation runs."""

import importlib.util
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import arrays, with_gradients

import attn
from attn import Array, Causal, Global, Padding, Segments, Window

T, S = 19, 23
PLAIN = ("materialized", "blockwise")
KERNELS = (
    "cudnn",
    pytest.param(
        "tokamax",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("tokamax") is None,
            reason="tokamax is not installed: it needs Python 3.12 and jax 0.11.1",
        ),
    ),
    pytest.param("splash", marks=pytest.mark.slow),
)
every = pytest.mark.parametrize("name", [*PLAIN, *KERNELS])
pytestmark = pytest.mark.usefixtures("stand_ins")
LENGTHS = Padding(jnp.array([0, 11]))


def attend(name, q, k, v, **options):
    return attn.dot_product_attention(q, k, v, implementation=name, **options)


@every
def test_blind_queries_are_0_with_no_gradient(name):
    seen = jnp.arange(T)[None] % 3 > 0
    mask = LENGTHS & Padding(queries=seen)
    out, dq, dk, dv = with_gradients(*arrays(T, S), name, mask=mask)
    blind = np.array(~seen | jnp.array([[True], [False]]))
    for x in (out, dq):
        assert ((np.asarray(x) == 0).all((-1, -2)) == blind).all()
    for x in (dk, dv):
        assert ((np.asarray(x) == 0).all((-1, -2)) == ~np.asarray(LENGTHS.seen_keys(S))).all()


@every
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_hidden_never_shows(name, bad):
    mask = Causal() & LENGTHS
    q, k, v = arrays(T, S)
    clean = with_gradients(q, k, v, name, mask=mask)
    dirty = with_gradients(
        q.at[0].set(bad), k.at[0].set(bad).at[1, 11:].set(bad), v.at[0].set(-bad), name, mask=mask
    )
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@every
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [jnp.nan, -jnp.inf])
def test_what_is_seen_makes_exactly_its_queries_nan(name, where, bad):
    q, k, v = arrays(T, S)
    hurt = np.zeros((2, T, 4), bool)
    if where == "q":
        q = q.at[1, 4, 2, 0].set(bad)
        hurt[1, 4, 2] = True
    else:
        k, v = (x.at[1, 4, 1, 0].set(bad) if n == where else x for n, x in (("k", k), ("v", v)))
        hurt[1, 4:, 2:] = True
    mask = Causal() & Padding(jnp.array([3, 20]))
    out, dq, dk, dv = with_gradients(q, k, v, name, mask=mask)
    assert (np.isnan(out).all(-1) == hurt).all()
    assert (np.isnan(out).any(-1) == hurt).all()
    # not every gradient needs to be NaN, but a loss that is must not leave them all healthy (where
    # JAX differentiates, a loss that is linear in the output does)
    assert name == "materialized" or any(np.isnan(x[1]).any() for x in (dq, dk, dv))
    assert all(np.isfinite(x[0]).all() for x in (dq, dk, dv))
    # what no healthy row asks about stays out of its bits
    healthy = with_gradients(*arrays(T, S), name, mask=mask)[0]
    np.testing.assert_array_equal(np.asarray(out)[~hurt], np.asarray(healthy)[~hurt])


@pytest.mark.slow
def test_splash_finds_who_sees_a_nan_under_any_mask():
    q, k, v = arrays(150, 200)
    k = k.at[0, 120, 0, 0].set(jnp.nan).at[1, 7, 1, 0].set(jnp.inf)
    ids = np.random.default_rng(0).integers(0, 3, (2, 200))
    for mask in (Window(9, 2) | Global((3,)), Segments(ids[:, :150], ids) & Window(60, 60)):
        got, want = (np.isnan(attend(n, q, k, v, mask=mask)) for n in ("splash", "materialized"))
        assert want.any()
        assert (got == want).all()


@pytest.mark.parametrize("empty", [{"T": 0}, {"S": 0}, {"batch": (0,)}, {"D": 0}], ids=str)
def test_nothing_in_gives_zeros_or_a_refusal(empty):
    q, k, v = arrays(**empty)
    for name in (*PLAIN, None):
        out = attend(name, q, k, v)
        assert out.shape == (*q.shape[:-1], v.shape[-1])
        assert (np.asarray(out) == 0).all()
    for name in ("cudnn", "splash"):
        with pytest.raises(NotImplementedError, match=r"q, k, v: .* at least 1"):
            attend(name, q, k, v)


Q, K, V = arrays()
WRONG = {
    "mixed dtypes": ((Q, K.astype(jnp.bfloat16), V), {}, TypeError, "k: expected q's dtype"),
    "integers": ((Q.astype(int), K, V), {}, TypeError, "q: expected a float dtype"),
    "heads": ((Q[..., :3, :], K, V), {}, ValueError, "k: its heads must divide"),
    "widths": ((Q, K[..., :3], V), {}, ValueError, "k: expected"),
    "lengths": ((Q, K, V[:, :3]), {}, ValueError, "v: expected"),
    "an array for a mask": ((Q, K, V), {"mask": np.ones((2, 19, 19), bool)}, TypeError, "mask: "),
    "NaN scale": ((Q, K, V), {"scale": float("nan")}, ValueError, "scale: expected a finite"),
    "endless scale": ((Q, K, V), {"scale": float("inf")}, ValueError, "scale: expected a finite"),
    "shape of scale": ((Q, K, V), {"scale": jnp.ones(3)}, ValueError, "scale: expected a number"),
    "logit_cap": ((Q, K, V), {"logit_cap": -1.0}, ValueError, "logit_cap: expected"),
    "block": ((Q, K, V), {"block": 0}, ValueError, "block: expected"),
    "bias": ((Q, K, V), {"bias": jnp.ones((3, 4, 19, 19))}, ValueError, "bias: expected"),
    "dropout 1": (
        (Q, K, V),
        {"dropout_rate": 1.0, "dropout_key": jax.random.key(0)},
        ValueError,
        "dropout_rate: expected a number in",
    ),
    "dropout below 0": ((Q, K, V), {"dropout_rate": -0.1}, ValueError, "dropout_rate: expected"),
    "NaN dropout": ((Q, K, V), {"dropout_rate": float("nan")}, ValueError, "dropout_rate: "),
    "no key": ((Q, K, V), {"dropout_rate": 0.5}, ValueError, "dropout_key: expected a key"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", [*PLAIN, "cudnn", "tokamax", "splash"])
def test_wrong_input_is_the_same_error(name, case):
    qkv, options, kind, message = WRONG[case]
    for call in (attn.dot_product_attention, attn.picked):
        with pytest.raises(kind, match="^" + re.escape(message)):
            call(*qkv, implementation=name, **options)


def test_a_mask_of_numbers_is_refused_before_any_implementation():
    with pytest.raises(TypeError, match=r"Array\.seen: expected booleans"):
        Array(np.ones((2, 19, 19), np.float32))


@every
def test_negative_and_zero_scales_are_numbers(name):
    for scale in (-1.0, 0.0, 0):
        want = attend("materialized", Q, K, V, mask=Causal(), scale=scale)
        got = attend(name, Q, K, V, mask=Causal(), scale=scale)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_import_attn_loads_no_kernel_library():
    program = """
import sys, jax.numpy as jnp, attn
q = jnp.ones((1, 9, 2, 4))
attn.dot_product_attention(q, q, q)
print([m for m in sys.modules if "tokamax" == m or "pallas" in m and m.startswith("jax.exp")])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
