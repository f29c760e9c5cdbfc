"""attn.nn.Attention against a head-by-head NumPy computation, for any mechanism."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, Toy, jit, run

from attn import RWKV7, ArrayBias, Causal, GatedDeltaNet, Padding, SlidingWindow, positions
from attn.nn import Attention

W, N, K, H = 10, 4, 2, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, W)).astype(np.float32)
C = RNG.normal(size=(3, 7, W)).astype(np.float32)
SEEN = np.tril(np.ones((5, 5), bool))
NEAR = dict(rtol=2e-5, atol=2e-5)


def layer(**changes):
    sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H, max_length=7, mechanism=SOFTMAX)
    return Attention(W, **{**sizes, **changes}, key=jax.random.key(1))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(layer, x, context, *, seen=True, change=lambda q, k: (q, k), bias=0):
    """Each head by itself, from its own columns of the fused kernel, in float64."""
    kernel = np.asarray(layer.qkv[...], np.float64)
    n, k_heads, h = layer.heads
    columns = np.split(kernel, kernel.shape[1] // h, axis=1)
    heads = []
    for head in range(n):
        group = head // (n // k_heads)
        q, k = x @ columns[head], context @ columns[n + group]
        q, k = change(q, k)
        s = q @ np.swapaxes(k, -1, -2) / np.sqrt(h) + bias
        heads.append(softmax(np.where(seen, s, -np.inf)) @ (context @ columns[n + k_heads + group]))
    return np.concatenate(heads, -1) @ np.asarray(layer.out[...], np.float64)


@pytest.mark.parametrize("k_heads", [1, 2, 4])
def test_fused_projection_equals_each_head_by_hand(k_heads):
    a = layer(num_kv_heads=k_heads)
    assert a.qkv.shape == (W, (N + 2 * k_heads) * H)
    got = run(a, X, mask=Causal())
    np.testing.assert_allclose(got, by_hand(a, X, X, seen=SEEN), **NEAR)


def test_self_attention_projects_with_one_product():
    graph, params = nnx.split(layer())
    jaxpr = jax.make_jaxpr(lambda p, x: nnx.merge(graph, p)(x))(params, X)
    # q, k and v together; the scores; the values; the output
    assert str(jaxpr).count("dot_general") == 4


def test_cross_attention_uses_the_same_kernel():
    a = layer()
    np.testing.assert_allclose(run(a, X, context=C), by_hand(a, X, C), **NEAR)
    np.testing.assert_allclose(run(a, X, context=X), run(a, X), **NEAR)


def test_grouped_heads_equal_repeated_heads():
    a, b = layer(num_kv_heads=K), layer(num_kv_heads=N)
    q, k, v = np.split(np.asarray(a.qkv[...]).reshape(W, -1, H), (N, N + K), axis=1)
    repeat = lambda y: np.repeat(y, N // K, axis=1)
    b.qkv[...] = jnp.asarray(np.concatenate([q, repeat(k), repeat(v)], 1).reshape(W, -1))
    np.testing.assert_allclose(run(a, X, mask=Causal()), run(b, X, mask=Causal()), **NEAR)


def test_qk_norm_and_its_learned_scale():
    a = layer(qk_norm=True)
    a.q_norm.scale[...] = jnp.arange(1.0, H + 1)
    rms = lambda y: y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6)
    change = lambda q, k: (rms(q) * np.arange(1, H + 1), rms(k))
    np.testing.assert_allclose(run(a, X), by_hand(a, X, X, change=change), **NEAR)


def test_positions_rotate_q_and_k():
    a = layer()
    turn = lambda y: np.asarray(
        positions.rotary(jnp.asarray(y, "float32")[..., None, :], jnp.arange(5) + 2)
    )[..., 0, :]
    want = by_hand(a, X, X, change=lambda q, k: (turn(q), turn(k)))
    np.testing.assert_allclose(
        run(a, X, positions=jnp.arange(5)), want, **NEAR
    )  # only i - j matters
    assert not np.allclose(run(a, X), want, **NEAR)


def test_bias_and_mask_reach_the_mechanism():
    a = layer()
    bias = RNG.normal(size=(1, 1, 5, 5)).astype(np.float32)
    want = by_hand(a, X, X, seen=SEEN, bias=bias[:, 0])
    np.testing.assert_allclose(run(a, X, mask=Causal(), bias=ArrayBias(bias)), want, **NEAR)
    lengths = jnp.array([5, 2, 4])
    seen = np.arange(5) < np.asarray(lengths)[:, None, None]
    np.testing.assert_allclose(
        run(a, X, mask=Padding(lengths)), by_hand(a, X, X, seen=seen), **NEAR
    )


def test_learned_arrays_and_gates_are_parameters_of_the_layer():
    a = layer(mechanism=Toy())
    graph, params = nnx.split(a)
    assert set(params["learned"]) == {"sharpness"}
    assert set(params["gates"]["projections"]) == {"beta", "shift"}
    gates = a.gates(jnp.asarray(X))
    linear = a.gates.projections
    raw = lambda name: X @ linear[name].kernel[...] + linear[name].bias[...]
    np.testing.assert_allclose(gates["beta"], 1 / (1 + np.exp(-raw("beta"))), **NEAR)
    np.testing.assert_allclose(gates["shift"], raw("shift").reshape(3, 5, N, H), **NEAR)
    gradient = jit(jax.grad(lambda p: (nnx.merge(graph, p)(X) ** 2).sum()))(params)
    assert all(
        np.abs(x).max() > 0 for x in jax.tree.leaves((gradient["learned"], gradient["gates"])[0])
    )
    for name in ("beta", "shift"):
        assert np.abs(gradient["gates"]["projections"][name]["kernel"][...]).max() > 0


@pytest.mark.parametrize("mechanism", [SOFTMAX, Toy()], ids=["softmax", "toy"])
def test_weights_are_those_of_the_output(mechanism):
    a = layer(mechanism=mechanism)
    w = run(a, X, method="weights", mask=Causal(), positions=jnp.arange(5))
    _, _, v, extra = a._project(jnp.asarray(X), None, jnp.arange(5), Causal())
    y = jnp.einsum("bkgts,bskd->btkgd", w.reshape(3, K, N // K, 5, 5), v).reshape(3, 5, N, H)
    y = y + extra.get("shift", 0)
    got = y.reshape(3, 5, -1) @ a.out[...]
    np.testing.assert_allclose(got, run(a, X, mask=Causal(), positions=jnp.arange(5)), **NEAR)


def test_a_layer_beside_softmax_is_of_the_same_q_k_and_v():
    a, b = layer(mechanism=SOFTMAX), layer(mechanism=SlidingWindow(left=9, right=9))
    near = layer(mechanism=SlidingWindow(left=1, right=1))
    mine, exact = run(a, X, method="beside_softmax", mask=Causal(), positions=jnp.arange(5))
    np.testing.assert_allclose(mine, exact, **NEAR)
    np.testing.assert_allclose(
        mine.reshape(3, 5, -1) @ a.out[...],
        run(a, X, mask=Causal(), positions=jnp.arange(5)),
        **NEAR,
    )
    mine, wide = run(b, X, method="beside_softmax", mask=Causal())
    np.testing.assert_allclose(mine, wide, **NEAR)
    mine, same = run(near, X, method="beside_softmax", mask=Causal())
    np.testing.assert_allclose(same, wide, **NEAR)
    assert np.abs(mine - same).max() > 0.01


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_float32_compute_in_dtype_under_strict_promotions(dtype):
    a = layer(dtype=dtype, qk_norm=True, mechanism=Toy())
    assert {x.dtype for x in jax.tree.leaves(nnx.state(a))} == {np.dtype("float32")}
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = run(a, X, positions=jnp.arange(5))
        run(a, X, method="weights")
    assert y.dtype == dtype
    exact = run(layer(qk_norm=True, mechanism=Toy()), X, positions=jnp.arange(5))
    assert np.sqrt(np.square(y - exact).mean() / np.square(exact).mean()) < 2**-6


def test_what_is_no_mechanism_and_no_number_of_heads_is_named():
    sizes = dict(max_length=4, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"mechanism: expected a Mechanism such as attn.Softmax"):
        Attention(8, mechanism="softmax", num_heads=2, **sizes)
    with pytest.raises(ValueError, match="num_heads: expected an integer from 1"):
        Attention(8, mechanism=SOFTMAX, num_heads=0, **sizes)


@pytest.mark.parametrize("name", ["rotary", "qk_norm", "bias", "xpos"])
def test_a_setting_of_another_kind_is_named(name):
    # a rotary was missed at the first call with positions, a flag never: "no" was a bias
    with pytest.raises(TypeError, match=f"^{name}: expected .*, got 'no'$"):
        layer(**{name: "no"})


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5)], ids=str)
def test_positions_may_be_of_each_row_or_of_all(shape):
    positions = jnp.broadcast_to(2 * jnp.arange(5), shape)
    want = run(layer(), X, positions=2 * jnp.arange(5))
    np.testing.assert_allclose(run(layer(), X, positions=positions), want, **NEAR)


def test_positions_that_do_not_fit_are_named():
    for shape in ((6,), (1,), (2, 5), (3, 1), (1, 3, 5), ()):
        wrong = rf"positions: .* broadcasts to \[3, 5\], got {re.escape(str(list(shape)))}"
        prefill = functools.partial(layer().prefill, max_length=7)
        for call in (layer(), layer().weights, prefill):
            with pytest.raises(ValueError, match=wrong):
                call(X, positions=jnp.zeros(shape, int))
    with pytest.raises(TypeError, match="positions: expected an array, got list"):
        layer()(X, positions=[0, 1, 2, 3, 4])


@pytest.mark.parametrize("mechanism", [SOFTMAX, GatedDeltaNet(), RWKV7()], ids=lambda m: m.name)
def test_a_step_takes_a_state_and_one_token(mechanism):
    made = layer(mechanism=mechanism, num_kv_heads=N)
    state = jax.eval_shape(lambda: made.prefill(X, max_length=7)[0])
    with pytest.raises(TypeError, match="state: expected that of `prefill`, got NoneType"):
        made.step(None, X[:, :1])
    for x in (X[:, :2], X[:, :0], X[0, 0]):
        with pytest.raises(ValueError, match=r"x: expected one token \[\*B, 1, W\], got"):
            made.step(state, x)
    with pytest.raises(ValueError, match=r"x: expected a last axis of 10, got \[3, 1, 9\]"):
        made.step(state, X[:, :1, :9])
    with pytest.raises(ValueError, match=r"positions: .* broadcasts to \[3, 1\], got \[5\]"):
        made.step(state, X[:, :1], positions=jnp.arange(5))
    # beside the last token of each row, one of no batch was taken for all of them
    for x in (X[:1, :1], X[:2, :1], X[0, :1]):
        with pytest.raises(ValueError, match=r"^[xq]: expected .*\[?3, 1, .* got"):
            jax.eval_shape(made.step, state, x)


@pytest.mark.parametrize("value", [0, 2.0, "1", True])
@pytest.mark.parametrize("name", ["width", "max_length", "num_kv_heads", "head_dim"])
def test_sizes_that_are_none_are_named(name, value):
    sizes = dict(width=W, num_heads=N, max_length=7, mechanism=SOFTMAX, key=jax.random.key(0))
    with pytest.raises(ValueError, match=f"{name}: expected an integer from 1 .*, got {value!r}"):
        Attention(**{**sizes, name: value})


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"num_heads: expected a divisor of width 10, got 4"):
        layer(head_dim=None)
    with pytest.raises(ValueError, match=r"num_kv_heads: expected a divisor of num_heads 4, got 3"):
        layer(num_kv_heads=3)
    with pytest.raises(ValueError, match=r"context: expected a last axis of 10, got \[3, 7, 9\]"):
        layer()(X, context=C[..., :9])
    with pytest.raises(ValueError, match=r"context: expected a last axis of 10, got \[3, 7, 9\]"):
        layer().memory(C[..., :9])
    with pytest.raises(ValueError, match=r"x: expected a last axis of 10, got \[3, 5, 9\]"):
        layer().recall(X[..., :9], layer().memory(C))
    with pytest.raises(ValueError, match="positions: two sequences"):
        layer()(X, context=C, positions=jnp.arange(5))
    with pytest.raises(ValueError, match=r"context: Toy gates .*beta, shift"):
        layer(mechanism=Toy())(X, context=C)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda y: y[:1], r"float32 \[1, 5, 4, 6\]"),  # broadcast: rows had those of the first
        (lambda y: y.astype(jnp.int32), r"int32 \[3, 5, 4, 6\]"),  # no gradient came back
        (lambda y: y.astype(jnp.complex64), r"complex64 \[3, 5, 4, 6\]"),
        (lambda y: (y, 1), r"tuple \[\]"),
    ],
)
def test_an_output_that_is_none_of_a_mechanism_is_named(change, got):
    class Odd(Toy):
        def __call__(self, *args, **kwargs):
            return change(super().__call__(*args, **kwargs))

    told = rf"^Odd: expected an output .* float32 \[3, 5, 4, 6\], got {got}"
    with pytest.raises(ValueError, match=told):
        jax.eval_shape(lambda: layer(mechanism=Odd())(X))


@pytest.mark.parametrize("array", [jnp.zeros((0, 3)), jnp.zeros(2, jnp.int32)])
def test_what_cannot_be_learned_is_named(array):
    """Training ended at the first checkpoint, which holds no array of nothing, or in jax.grad."""

    class Odd(Toy):
        def init(self, key, **sizes):
            return {"w": array}

    told = "init: w: expected an array of real numbers, and some of them"
    got = re.escape(f"{array.dtype} {[*array.shape]}")
    with pytest.raises(ValueError, match=f"^Odd: {told}, got {got}$"):
        layer(mechanism=Odd())
