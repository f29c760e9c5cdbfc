"""What is handed to cuDNN and tokamax means what was asked: their XLA stand-ins against ours."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import arrays, same

import attn
from attn import FULL, Causal, Padding, Window
from attn.testing import check

# the stand-ins' sums are as rough as unoptimised loops make them
pytestmark = [pytest.mark.optimised, pytest.mark.slow]

NO_TOKAMAX = pytest.mark.skipif(
    importlib.util.find_spec("tokamax") is None,
    reason="tokamax is not installed: it needs Python 3.12 and jax 0.11.1",
)
LENGTHS = Padding(jnp.array([0, 7], jnp.int32))
PADDED = Padding(jnp.array([30, 5]), queries=jnp.arange(19)[None] < jnp.array([[9], [19]]))
BOTH = {
    "full": (19, 19, FULL),
    "full, even": (18, 20, FULL),
    "causal": (19, 19, Causal()),
    "causal, more keys": (19, 23, Causal()),
    "causal, fewer keys": (19, 12, Causal()),
    "causal, offset past the end": (19, 12, Causal(11)),
    "window 0": (19, 19, Window(0, 0)),
    "window 1": (19, 24, Causal() & Window(1, 4)),
    "window of all but one": (19, 19, Window(17, 0)),
    "window of all": (19, 19, Causal() & Window(18, 3)),
    "lengths": (19, 12, LENGTHS),
    "lengths and queries": (19, 19, PADDED),
    "causal lengths": (19, 19, Causal() & LENGTHS),
    "causal lengths, more keys": (18, 23, Causal() & LENGTHS),
    "two lengths": (19, 19, Padding(jnp.array([9, 4])) & Causal() & Padding(jnp.array([7, 8]))),
}
WIDER = {
    "causal, offset": (19, 23, Causal(4)),
    "two-sided window": (19, 23, Window(3, 2)),
    "window and offset": (19, 23, Window(3, 2) & Causal(1)),
}


@pytest.mark.parametrize("case", BOTH)
def test_cudnn_masks_mean_what_was_asked(stand_ins, case):
    T, S, mask = BOTH[case]
    same(*arrays(T, S), "cudnn", mask=mask)


@NO_TOKAMAX
@pytest.mark.parametrize("case", BOTH | WIDER)
def test_tokamax_masks_mean_what_was_asked(stand_ins, case):
    T, S, mask = (BOTH | WIDER)[case]
    same(*arrays(T, S), "tokamax", mask=mask)


@NO_TOKAMAX
@pytest.mark.parametrize("shape", [(2, 4, 19, 19), (1, 1, 19, 19), (2, 1, 1, 19)])
def test_tokamax_adds_a_bias(stand_ins, shape):
    bias = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    same(*arrays(), "tokamax", mask=Causal(), bias=bias)
    same(*arrays(), "tokamax", mask=LENGTHS, bias=bias.at[0, 0, 0, 1].set(-jnp.inf))


@NO_TOKAMAX
def test_tokamax_caps_scores(stand_ins):
    same(*arrays(), "tokamax", mask=Causal(), logit_cap=1.5)


@pytest.mark.parametrize("scale", [0.3, -0.7, 0.0, 2])
@pytest.mark.parametrize("name", ["cudnn", pytest.param("tokamax", marks=NO_TOKAMAX)])
def test_scale_of_either_sign(stand_ins, name, scale):
    same(*arrays(), name, mask=Causal(), scale=scale)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("widths", [(8, 8), (5, 12)])
def test_cudnn_heads_and_widths(stand_ins, heads, widths):
    (N, K), (H, D) = heads, widths
    same(*arrays(N=N, K=K, H=H, D=D), "cudnn", mask=Causal() & LENGTHS)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_cudnn_leading_axes(stand_ins, batch):
    lengths = np.resize([0, 7, 19], batch).astype(np.int32)
    same(*arrays(batch=batch), "cudnn", mask=Causal() & Padding(jnp.asarray(lengths)))


def test_cudnn_in_bfloat16(stand_ins):
    same(*arrays(dtype=jnp.bfloat16), "cudnn", mask=Causal() & Padding(jnp.array([0, 17])))


@pytest.mark.filterwarnings("error::RuntimeWarning")  # as of a bound that is no float16
def test_cudnn_is_traced_in_float16(stand_ins):  # XLA's CPU does not run the stand-in's product
    run = lambda *x: attn.dot_product_attention(*x, implementation="cudnn")
    assert jax.eval_shape(run, *arrays(dtype=jnp.float16)).dtype == jnp.float16


def test_cudnn_under_vmap_still_decides_once(stand_ins):
    # a predicate for each row turned the guard's cond into a select: the O(T S) look-up always ran
    q, k, v = arrays()
    one = lambda q, k, v: attn.dot_product_attention(q, k, v, mask=Causal(), implementation="cudnn")
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(jax.grad(lambda *a: one(*a).sum())))(q, k, v))
    np.testing.assert_allclose(jax.vmap(one)(q, k, v), one(q, k, v), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "law", ["is_strictly_causal", "does_not_leak", "sees_nothing_gives_zero", "transforms_agree"]
)
def test_laws_hold_through_cudnn(stand_ins, law):
    check(attn.Softmax(implementation=("cudnn", "blockwise")), only=[law]).raise_if_broken()
