"""The token shift against a loop over tokens, and around a mechanism that shifts what it names."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import Toy, build, jit, run

from attn import RWKV7, Array, Causal, Padding, Segments, Softmax, Window
from attn.gates import Fading
from attn.nn import Attention
from attn.nn.keys import fold
from attn.nn.token_shift import DataDependentShift, TokenShift

W, T, KEY = 6, 9, jax.random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, T, W)), jnp.float32)
IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2], [5, 5, 1, 1, 1, 1, 5, 5, 5]], np.int32)
REAL = np.arange(T) < np.array([[9], [7]])
HOLES = REAL & (np.arange(T) != 3)
POWERS = {"q": 0.2, "k": 0.7, "far": 3.0}


def mixture(x, mask, name="k"):
    starts = {name: Fading(power=power) for name, power in POWERS.items()}
    layer = TokenShift(W, starts, key=jax.random.key(0))
    return layer(name, x, layer.before(x, mask))


def mix(x, mask, name="k"):
    return jit(lambda x: mixture(x, mask, name))(x)


def by_hand(name, x, same, real):
    """same(b, t, s): whether s is of t's document."""
    x = np.asarray(x, np.float64)
    y = np.zeros(x.shape)
    for b, t, c in np.ndindex(*x.shape):
        mu = 1 - (c / W) ** POWERS[name]
        before = t > 0 and real[b, t - 1] and same(b, t, t - 1)
        y[b, t, c] = x[b, t, c] * (1 - mu) + (x[b, t - 1, c] * mu if before else 0)
    return y


@pytest.mark.parametrize("name", POWERS)
def test_it_equals_a_loop_over_tokens(name):
    near = dict(rtol=1e-5, atol=1e-6)
    want = by_hand(name, X, lambda b, t, s: True, np.ones((2, T), bool))
    np.testing.assert_allclose(mix(X, Causal(), name), want, **near)
    for real in (REAL, HOLES):
        mask = Causal() & Padding(keys=real) & Segments(IDS, IDS)
        want = by_hand(name, X, lambda b, t, s: IDS[b, t] == IDS[b, s], real)
        np.testing.assert_allclose(mix(X, mask, name), want, **near)


def test_what_has_no_share_is_read_as_it_is():
    np.testing.assert_array_equal(mix(X, Causal(), "v"), X)


def test_documents_differ_if_either_of_their_ids_does():
    ones = np.zeros((2, T), np.int32)
    want = mix(X, Segments(IDS, IDS))
    for mask in (Segments(IDS, ones), Segments(ones, IDS)):
        np.testing.assert_array_equal(mix(X, mask), want)


@pytest.mark.parametrize("real", [REAL, HOLES], ids=["end", "middle"])
def test_hidden_tokens_count_as_0_even_nan(real):
    mask = Padding(keys=real)
    loss = lambda x: jnp.where(real[..., None], mixture(x, mask), 0).sum()
    call = jit(lambda x: (mixture(x, mask), jax.grad(loss)(x)))
    y, dx = call(X)
    again, dx_again = call(jnp.where(real[..., None], X, jnp.nan))
    np.testing.assert_array_equal(np.asarray(again)[real], np.asarray(y)[real])
    np.testing.assert_array_equal(dx_again, dx)
    assert not np.asarray(dx)[~real].any()


def test_a_token_sees_itself_and_the_one_before():
    jacobian = jit(jax.jacobian(lambda x: mixture(x, Causal())))(X[0])
    moved = np.abs(jacobian).max((1, 3)) > 0
    far = np.subtract.outer(np.arange(T), np.arange(T))
    np.testing.assert_array_equal(moved, (far == 0) | (far == 1))


def test_bfloat16_is_mixed_in_float32_under_strict_promotions():
    x = X.astype(jnp.bfloat16)
    mask = Padding(keys=REAL) & Segments(IDS, IDS)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = mix(x, mask)
    assert y.dtype == jnp.bfloat16
    exact = mix(x.astype(jnp.float32), mask)
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("length", [0, 1])
def test_any_length_and_no_batch(length):
    y = mix(X[:, :length], Causal())
    assert y.shape == (2, length, W)
    np.testing.assert_array_equal(mix(X[0, :length], Causal()), y[0])


def test_masks_that_it_cannot_keep_apart_are_named():
    seen = Array(np.ones((2, T, T), bool))
    with pytest.raises(NotImplementedError, match=r"token shift keeps .*; set token_shift=False"):
        mixture(X, Causal() & seen)
    with pytest.raises(NotImplementedError, match="not Segments here"):
        mixture(X, Segments(IDS, IDS) | Window(1, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shifted(Softmax):
    """Softmax that asks for a shift of what it names."""

    implementation: str | None = "materialized"
    short_conv: int = 0
    output_gate: str | None = "sigmoid"
    names: tuple[str, ...] = ("q", "k", "v", "output_gate")

    @property
    def shifts(self):
        return {name: Fading(power=0.3 + 0.4 * n) for n, name in enumerate(self.names)}


def layer(mechanism, **settings):
    sizes = dict(num_heads=3, mechanism=mechanism, max_length=T)
    return Attention(W, **sizes, **settings, key=jax.random.key(1))


def test_each_projection_reads_its_own_mixture_and_the_others_x():
    for names in (("q", "k", "v", "output_gate"), ("v",), ("output_gate", "q")):
        a, plain = layer(Shifted(names=names)), layer(Shifted(names=()))
        assert plain.token_shift is None
        mixed = {}
        for name in ("q", "k", "v", "output_gate"):
            mu = np.asarray(a.token_shift.mu[name][...]) if name in names else 0
            mixed[name] = X + (np.pad(X, [(0, 0), (1, 0), (0, 0)])[:, :T] - X) * mu
        w = dict(zip("qkv", np.split(np.asarray(a.qkv[...]), 3, axis=-1)))
        q, k, v = ((mixed[name] @ w[name]).reshape(2, T, 3, -1) for name in "qkv")
        y = jit(lambda *qkv: Shifted()(*qkv, mask=Causal()))(q, k, v).reshape(2, T, -1)
        y *= jax.nn.sigmoid(mixed["output_gate"] @ a.out_gate[...])
        want = y @ a.out[...]
        np.testing.assert_allclose(run(a, X, mask=Causal()), want, rtol=1e-4, atol=1e-5)
        assert not np.allclose(run(plain, X, mask=Causal()), want)


def test_one_kernel_for_q_and_k_reads_one_mixture():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Shared(Shifted):
        shared_qk: bool = True
        names: tuple[str, ...] = ("q",)

    a = layer(Shared())
    q, k, v, _ = a._project(X, None, None, Causal())
    mixed = a.token_shift("q", X, a.token_shift.before(X, Causal()))
    of_q, of_v = np.split(np.asarray(a.qkv[...]), 2, axis=-1)
    np.testing.assert_array_equal(q, k)
    np.testing.assert_allclose(q.reshape(2, T, -1), mixed @ of_q, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v.reshape(2, T, -1), X @ of_v, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("taps", [0, 1, 4])
@pytest.mark.parametrize("prompt", [1, 2, 6])
def test_decoding_goes_on_from_the_last_token(taps, prompt):
    graph, params = nnx.split(layer(Shifted(short_conv=taps)))
    whole = run(nnx.merge(graph, params), X, mask=Causal())
    step = jit(lambda state, x: nnx.merge(graph, params).step(state, x))
    prefill = jit(lambda x: nnx.merge(graph, params).prefill(x, max_length=T))
    state, y = prefill(X[:, :prompt])
    np.testing.assert_allclose(y, whole[:, :prompt], rtol=1e-4, atol=1e-5)
    for t in range(prompt, T):
        np.testing.assert_array_equal(state.last, X[:, t - 1 : t])
        state, y = step(state, X[:, t : t + 1])
        np.testing.assert_allclose(y, whole[:, t : t + 1], rtol=1e-4, atol=1e-5)


def test_rwkv7_starts_as_published_and_can_do_without():
    a, off = layer(RWKV7()), layer(RWKV7(token_shift=False))
    published = {"q": 0.2, "log_decay": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "output_gate": 0.2}
    assert a.token_shift.mu.keys() == published.keys()
    for name, power in published.items():
        want = [1 - (c / W) ** power for c in range(W)]
        np.testing.assert_allclose(a.token_shift.mu[name][...], want, rtol=1e-5)
        assert a.token_shift.mu[name][...].dtype == jnp.float32
    rest = nnx.state(a)
    del rest["token_shift"]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(off), rest)
    assert "output_gate" not in layer(RWKV7(output_gate=None)).token_shift.mu


@pytest.mark.slow
def test_every_form_of_depth_is_the_same_encoder():
    settings = dict(mechanism=RWKV7(chunk=4), head="token", pooling="none", positions="none")
    tokens = jnp.asarray(RNG.integers(0, 11, (3, 6)), jnp.int32)
    y = run(build(**settings, layers=2), tokens, mask=Causal())
    for form in ({"scan": True}, {"remat": True}):
        again = run(build(**settings, layers=2, **form), tokens, mask=Causal())
        np.testing.assert_allclose(again, y, rtol=1e-4, atol=1e-5)


def test_shares_that_are_drawn_are_drawn_apart():
    """Of the networks' keys too, which were those of the shares."""
    drawn = jax.random.key_data  # an initializer that gives back its key
    start = lambda key, shape, dtype: jnp.resize(drawn(key), shape).astype(dtype)
    shift = DataDependentShift(2, dict.fromkeys("qkv", start) | {"shares": start}, rank=1, key=KEY)
    keys = [x[...] for x in (*shift.mu.values(), shift.mu_x)]
    keys += [drawn(fold(KEY, name)).astype(jnp.float32) for name in "qkv"]
    assert len({tuple(np.asarray(key)) for key in keys}) == 7


def test_mistakes_are_named():
    class Wrong(Toy):
        shifts: ClassVar = dict.fromkeys(("query", "beta", "output_gate"), Fading(power=0.2))

    expected = "shifts: expected names out of beta, k, q, shift, v from Wrong, got output_gate, qu"
    with pytest.raises(ValueError, match=expected):
        layer(Wrong())
    kind = lambda **names: type("Asking", (Toy,), names)()
    with pytest.raises(ValueError, match=r"^shifts: expected initializers .*, got \{'q': 0.2\}$"):
        layer(kind(shifts={"q": 0.2}))
    with pytest.raises(ValueError, match=r"^shifts: expected .*, of 'shares' too, got \{'q': "):
        layer(kind(shifts={"q": Fading(power=0.2)}, shift_rank=4))
    with pytest.raises(ValueError, match=r"context: Shifted mixes each .*token_shift=False"):
        layer(Shifted())(X, context=X)
    with pytest.raises(ValueError, match=r"context: Shifted mixes each"):
        layer(Shifted()).memory(X)
    with pytest.raises(TypeError, match="token_shift: expected True or False, got 1"):
        RWKV7(token_shift=1)
