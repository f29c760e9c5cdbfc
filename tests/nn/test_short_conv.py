"""The short convolution against a loop over tokens, and that nothing leaks through it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_mechanism import jit, run

from attn import Array, Causal, Padding, Segments, Window
from attn.nn.short_conv import ShortConv

C, T = 3, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, T, C)), jnp.float32)
IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2], [5, 5, 1, 1, 1, 1, 5, 5, 5]], np.int32)
LENGTHS = np.array([9, 7], np.int32)


def conv(taps=4):
    return ShortConv(C, taps, key=jax.random.key(1))


def by_hand(layer, x, same, real):
    """same(b, t, s): whether s is of t's document."""
    w, y = np.asarray(layer.kernel[...], np.float64), np.zeros(x.shape)
    for b, t, j in np.ndindex(*x.shape[:2], len(w)):
        if t >= j and real[b, t - j] and same(b, t, t - j):
            y[b, t] += w[j] * x[b, t - j]
    return y / (1 + np.exp(-y))


@pytest.mark.parametrize("taps", [1, 4, 12])
def test_it_equals_a_loop_over_tokens_and_taps(taps):
    layer = conv(taps)
    everywhere = np.ones((2, T), bool)
    want = by_hand(layer, X, lambda b, t, s: True, everywhere)
    np.testing.assert_allclose(run(layer, X, Causal()), want, rtol=1e-5, atol=1e-6)
    mask = Causal() & Padding(LENGTHS) & Segments(IDS, IDS)
    real = np.arange(T) < LENGTHS[:, None]
    want = by_hand(layer, X, lambda b, t, s: IDS[b, t] == IDS[b, s], real)
    np.testing.assert_allclose(run(layer, X, mask), want, rtol=1e-5, atol=1e-6)


def test_q_k_and_v_read_what_is_computed_once():
    """By the program: XLA on a CPU added up the taps in each loop that reads some of the channels,
    which made a layer's projections take up to 5 times as long."""
    layer = conv()

    def heads(x):
        return [y[..., None] for y in jnp.split(layer(x, Causal()), C, -1)]

    program = jax.jit(heads).lower(jnp.ones((2, 64, C))).compile().as_text()
    assert program.count(" multiply(") <= 4 + 1


def test_its_taps_are_not_rolled():
    """By the program: a layer with documents took twice as long."""
    assert "concatenate" not in str(jax.make_jaxpr(lambda x: conv()(x, Causal()))(X))


def test_documents_differ_if_either_of_their_ids_does():
    layer, ones = conv(), np.zeros((2, T), np.int32)
    want = run(layer, X, Segments(IDS, IDS))
    for mask in (Segments(IDS, ones), Segments(ones, IDS)):
        np.testing.assert_array_equal(run(layer, X, mask), want)


def test_hidden_tokens_count_as_0_even_nan():
    layer, real = conv(), np.arange(T) < LENGTHS[:, None]
    for mask in (Padding(LENGTHS), Padding(keys=real)):
        loss = lambda x, mask=mask: layer(x, mask).sum()
        y, dx = jit(lambda x, f=loss, m=mask: (layer(x, m), jax.grad(f)(x)))(X)
        again, dx_again = jit(lambda x, f=loss, m=mask: (layer(x, m), jax.grad(f)(x)))(
            jnp.where(real[..., None], X, jnp.nan)
        )
        np.testing.assert_array_equal(again, y)
        np.testing.assert_array_equal(dx_again, dx)
        assert not np.asarray(dx)[~real].any()


def test_the_past_does_not_see_the_future():
    layer = conv()
    jacobian = jit(jax.jacobian(lambda x: layer(x, Causal())))(X[0])
    moved = np.abs(jacobian).max((1, 3))
    far = np.subtract.outer(np.arange(T), np.arange(T))
    assert not moved[(far < 0) | (far >= 4)].any()
    assert (moved[(far >= 0) & (far < 4)] > 0).all()


def test_weights_start_as_those_of_a_depthwise_convolution():
    kernel = np.asarray(ShortConv(5000, 4, key=jax.random.key(0)).kernel[...])
    assert kernel.shape == (4, 5000)
    assert kernel.dtype == np.float32
    np.testing.assert_allclose([kernel.min(), kernel.max()], [-0.5, 0.5], atol=0.01)
    np.testing.assert_allclose(kernel.std(1), np.full(4, 0.5 / np.sqrt(3)), rtol=0.05)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_any_length_and_leading_axes(length):
    x = jnp.broadcast_to(X[:, :length], (3, 2, length, C))
    y = run(conv(), x, Causal())
    np.testing.assert_array_equal(y, np.broadcast_to(run(conv(), X[:, :length], Causal()), y.shape))
    assert run(conv(), X[0, :length], Causal()).shape == (length, C)


def test_it_sums_in_float32_under_strict_promotions():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y = run(conv(), X.astype(jnp.bfloat16), Padding(LENGTHS) & Segments(IDS, IDS))
    assert y.dtype == jnp.bfloat16
    exact = run(conv(), X.astype(jnp.bfloat16).astype(jnp.float32), Segments(IDS, IDS))
    np.testing.assert_array_equal(y[0], exact[0].astype(jnp.bfloat16))


def test_masks_that_it_cannot_keep_apart_are_named():
    seen = Array(np.ones((2, T, T), bool))
    with pytest.raises(NotImplementedError, match=r"mask: .* not Array here; set short_conv=0"):
        conv()(X, Causal() & seen)
    with pytest.raises(NotImplementedError, match="not Segments here"):
        conv()(X, Segments(IDS, IDS) | Window(1, 0))
    with pytest.raises(TypeError, match=r"mask: expected a Mask from attn\.masks, got ndarray"):
        conv()(X, np.ones((2, T, T), bool))
    with pytest.raises(ValueError, match=r"Segments.query_ids: expected shape \[2, 9\]"):
        conv()(X, Segments(IDS[:, :3], IDS))
