"""A layer with all that a mechanism may ask for: gates, a short convolution, a norm and a gate on
the output. Each can be left out, and nothing leaks through any of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, build, jit, run

from attn import Array, Causal, Padding, Segments, Softmax
from attn.linearized.gated_delta_net import GatedDeltaNet
from attn.linearized.rwkv7 import RWKV7
from attn.nn import Attention, functional, with_kv_heads
from attn.norms import HeadNorm

W, N, K, H, T = 10, 4, 2, 6, 11
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, T, W)), jnp.float32)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 6)), jnp.int32)
NEAR = dict(rtol=2e-5, atol=2e-5)
ALL = GatedDeltaNet(chunk=4, short_conv=3, output_gate="silu", output_norm=True)
NONE = dataclasses.replace(ALL, short_conv=0, output_gate=None, output_norm=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Both(Softmax):
    """Softmax that asks for the same, so that a mask need not be causal."""

    implementation: str | None = "materialized"
    short_conv: int = 3
    output_gate: str | None = "sigmoid"

    @property
    def head_norm(self):
        return HeadNorm()


MECHANISMS = pytest.mark.parametrize(
    "mechanism",
    [ALL, Both(), pytest.param(RWKV7(chunk=4, bonus=0.3), marks=pytest.mark.slow)],
    ids=["gated delta net", "softmax", "rwkv7"],
)


def layer(mechanism=ALL, **changes):
    sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H, max_length=T, mechanism=mechanism)
    return Attention(W, **{**sizes, **changes}, key=jax.random.key(1))


def _gating(a):
    """What the output gate reads of X."""
    if a.token_shift is None:
        return X
    return a.token_shift("output_gate", X, a.token_shift.before(X, Causal()))


def silu(x):
    return x / (1 + np.exp(-x))


def test_the_layer_equals_its_equation():
    a = layer()
    a.head_norm.scale[...] = jnp.linspace(0.5, 1.5, H)
    qkv = np.asarray(X @ a.qkv[...])
    w = np.asarray(a.short_conv.kernel[...])
    shifted = [np.pad(qkv, [(0, 0), (j, 0), (0, 0)])[:, :T] for j in range(3)]
    q, k, v = np.split(silu(sum(w[j] * shifted[j] for j in range(3))), (N * H, (N + K) * H), -1)
    heads = lambda x: x.reshape(2, T, -1, H)
    attend = jit(lambda q, k, v, gates: NONE(q, k, v, mask=Causal(), **gates))
    y = np.asarray(attend(heads(q), heads(k), heads(v), run(a.gates, X)))
    y = y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) * np.linspace(0.5, 1.5, H)
    y = y.reshape(2, T, -1) * silu(np.asarray(X @ a.out_gate[...]))
    np.testing.assert_allclose(run(a, X, mask=Causal()), y @ a.out[...], rtol=1e-4, atol=1e-5)


def test_gated_softmax_equals_its_equation():
    a = layer(Softmax(output_gate="sigmoid"))
    qkv = np.asarray(X @ a.qkv[...])
    q, k, v = (x.reshape(2, T, -1, H) for x in np.split(qkv, (N * H, (N + K) * H), -1))
    k, v = (np.repeat(x, N // K, axis=2) for x in (k, v))
    w = np.exp(np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(H)) * np.tri(T)
    y = np.einsum("bnts,bsnh->btnh", w / w.sum(-1, keepdims=True), v).reshape(2, T, N * H)
    y = y / (1 + np.exp(-np.asarray(X @ a.out_gate[...])))
    np.testing.assert_allclose(run(a, X, mask=Causal()), y @ a.out[...], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_each_part_can_be_left_out_and_moves_no_other():
    paths = lambda a: {
        jax.tree_util.keystr(path): x for path, x in jax.tree.leaves_with_path(nnx.state(a))
    }
    full, bare = paths(layer()), paths(layer(NONE))
    added = {
        "short_conv": "['short_conv']['kernel'].value",
        "output_gate": "['out_gate'].value",
        "output_norm": "['head_norm']['scale'].value",
    }
    assert full.keys() - bare.keys() == set(added.values())
    for name, path in added.items():
        a = layer(dataclasses.replace(ALL, **{name: getattr(NONE, name)}))
        rest = paths(a)
        assert rest.keys() == full.keys() - {path}
        for path, x in rest.items():
            np.testing.assert_array_equal(x, full[path])
        assert not np.allclose(run(a, X, mask=Causal()), run(layer(), X, mask=Causal()))


def test_the_matrix_of_the_gate_is_its_own():
    a = layer(num_heads=5, num_kv_heads=1, head_dim=2)  # square, as W_o then is
    matrices = [a.qkv[:, :W], a.out[...], a.out_gate[...]]
    assert np.abs(np.corrcoef([np.ravel(x) for x in matrices]) - np.eye(3)).max() < 0.4


@MECHANISMS
def test_strict_causality(mechanism):
    graph, params = nnx.split(layer(mechanism, qk_norm=True))
    attend = lambda x: nnx.merge(graph, params)(x, mask=Causal(), positions=jnp.arange(T))
    call = jit(attend)
    y = call(X)
    for t in (0, 4, T - 2):
        for change in (lambda x: -3 * x, lambda x: 1e8 * x, lambda x: jnp.nan * x):
            moved = call(X.at[:, t + 1 :].set(change(X[:, t + 1 :])))
            np.testing.assert_array_equal(moved[:, : t + 1], y[:, : t + 1])
    gradient = np.asarray(jit(jax.grad(lambda x: attend(x)[:, :5].sum()))(X))
    assert not gradient[:, 5:].any()
    assert gradient[:, :5].any()


@MECHANISMS
@pytest.mark.parametrize("form", ["lengths", "keys"])
def test_padding_never_leaks(mechanism, form):
    lengths = np.array([T - 3, T], np.int32)
    real = np.arange(T) < lengths[:, None]
    if form == "keys":  # hidden tokens in the middle too
        real[:, 4] = False
    mask = Causal() & (Padding(lengths) if form == "lengths" else Padding(keys=real))
    graph, params = nnx.split(layer(mechanism))

    @jit
    def call(x):
        def loss(x):
            y = nnx.merge(graph, params)(x, mask=mask)
            return jnp.where(real[..., None], y, 0).sum(), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(x)
        return y, gradient

    y, gradient = call(X)
    for filler in (7.0, 1e8, np.nan):
        again, gradient_again = call(jnp.where(real[..., None], X, filler))
        np.testing.assert_array_equal(np.asarray(again)[real], np.asarray(y)[real])
        if np.isfinite(filler):  # x^T dq of the layer's own projections is NaN with a NaN in x
            got, want = np.asarray(gradient_again)[real], np.asarray(gradient)[real]
            np.testing.assert_array_equal(got, want)
    assert not np.asarray(gradient)[~real].any()


@MECHANISMS
def test_documents_never_leak_and_equal_themselves_alone(mechanism):
    ids = jnp.asarray([[0] * 4 + [1] * 5 + [2] * 2, [3] * 2 + [0] * 8 + [3]], jnp.int32)
    mask = Causal() & Segments(ids, ids)
    graph, params = nnx.split(layer(mechanism))
    call = jit(lambda x: nnx.merge(graph, params)(x, mask=mask))
    y = call(X)
    for document in (0, 1, 3):
        inside = np.asarray(ids == document)
        for filler in (-3 * X, 1e8 * X, jnp.full_like(X, jnp.nan)):
            moved = call(jnp.where(inside[..., None], X, filler))
            np.testing.assert_array_equal(np.asarray(moved)[inside], np.asarray(y)[inside])
    alone = run(layer(mechanism), X[:1, 4:9], mask=Causal())
    np.testing.assert_allclose(y[:1, 4:9], alone, **NEAR)


@MECHANISMS
def test_rows_of_a_batch_are_apart(mechanism):
    y = run(layer(mechanism), X, mask=Causal())
    other = run(layer(mechanism), X.at[1].set(jnp.nan), mask=Causal())
    np.testing.assert_array_equal(other[0], y[0])


@MECHANISMS
def test_weights_are_those_of_the_output(mechanism):
    a = layer(mechanism)
    w = run(a, X, method="weights", mask=Causal()).reshape(2, K, N // K, T, T)
    q, k, v, extra = a._project(X, None, None, Causal())
    y = a.head_norm(jnp.einsum("bkgts,bskd->btkgd", w, v).reshape(2, T, N, H))
    if mechanism.bonus is not None:
        share = mechanism.own(q, k, bonus=a.bonus[...], **extra)
        y += share[..., None] * jnp.repeat(v, N // K, axis=-2)
    y = y.reshape(2, T, -1) * a._gating(_gating(a))
    got = y @ a.out[...]
    np.testing.assert_allclose(got, run(a, X, mask=Causal()), rtol=1e-3, atol=1e-4)


@MECHANISMS
def test_parameters_float32_compute_in_dtype_under_strict_promotions(mechanism):
    a = layer(mechanism, dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(nnx.state(a))} == {np.dtype("float32")}
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = run(a, X, mask=Causal())
    assert y.dtype == jnp.bfloat16
    exact = run(layer(mechanism), X, mask=Causal())
    assert np.sqrt(np.square(y - exact).mean() / np.square(exact).mean()) < 2**-5


@pytest.mark.parametrize("length", [0, 1, 2])
def test_any_length(length):
    assert run(layer(), X[:, :length], mask=Causal()).shape == (2, length, W)


ENCODER = dict(mechanism=ALL, head="token", pooling="none", positions="none")


def test_an_encoder_hides_padding_and_the_future():
    apply, params = functional(build(**ENCODER))
    lengths = jnp.array([6, 3, 0], jnp.int32)
    real = np.arange(6) < np.asarray(lengths)[:, None]

    @jit
    def call(params, tokens):
        def loss(params):
            y = apply(params, tokens, lengths=lengths, mask=Causal())
            return jnp.sum(jnp.square(y * real[..., None])), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return y, gradient

    y, gradient = call(params, TOKENS)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((y, gradient)))
    for filler in (5, 10**6):
        again, gradient_again = call(params, jnp.where(real, TOKENS, filler))
        np.testing.assert_array_equal(again, y)
        jax.tree.map(np.testing.assert_array_equal, gradient_again, gradient)
    changed = call(params, TOKENS.at[:, 4:].set((TOKENS[:, 4:] + 1) % 11))[0]
    np.testing.assert_array_equal(changed[:, :4], y[:, :4])
    assert not np.allclose(changed[0, 4:], y[0, 4:])


@pytest.mark.slow
def test_every_form_of_depth_is_the_same_encoder():
    y = run(build(**ENCODER, layers=2), TOKENS, mask=Causal())
    for form in ({"scan": True}, {"remat": True}):
        again = run(build(**ENCODER, layers=2, **form), TOKENS, mask=Causal())
        np.testing.assert_allclose(again, y, rtol=1e-4, atol=1e-5)


class Kept(Both):
    bonus = 0.5


def test_mistakes_are_named():
    with pytest.raises(
        ValueError, match="short_conv: expected a number of taps, 0 for none, got -1"
    ):
        layer(Both(short_conv=-1))
    with pytest.raises(ValueError, match="output_gate: expected 'silu' or 'sigmoid', or None, got"):
        layer(Both(output_gate="tanh"))
    with pytest.raises(ValueError, match="output_gate: expected 'silu' or 'sigmoid', or None, got"):
        Softmax(output_gate="tanh")
    with pytest.raises(ValueError, match=r"context: Both convolves x over time, .*short_conv=0"):
        layer(Both())(X, context=X)
    with pytest.raises(ValueError, match=r"context: Kept adds a token's own value, .*bonus=None"):
        layer(Kept(short_conv=0))(X, context=X)
    with pytest.raises(NotImplementedError, match="not Array here; set short_conv=0"):
        layer(Both())(X, mask=Array(jnp.ones((2, T, T), bool)))
    # without the convolution, both are fine
    plain = layer(Both(short_conv=0))
    assert run(plain, X, context=X, mask=Array(jnp.ones((2, T, T), bool))).shape == X.shape


def test_no_rule_pools_the_taps_of_key_heads():
    with pytest.raises(NotImplementedError, match="Both learns short_conv for each key head"):
        with_kv_heads(build(mechanism=Both()), 1)
    pooled = with_kv_heads(build(mechanism=Both(short_conv=0)), 1)
    assert run(pooled, TOKENS).shape == (3, 3)
    assert run(build(mechanism=SOFTMAX), TOKENS).shape == (3, 3)
