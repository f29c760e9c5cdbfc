"""Feature maps against their papers' kernels; features drawn by a key."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from attn._trigonometry import sin_cos
from attn.linearized import feature_maps as maps
from attn.linearized.linear import Linear, linear_attention
from attn.linearized.performer import Performer, performer_attention
from attn.masks import Causal
from attn.testing import inputs, rms

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 6))


def kernel(phi, x=X, y=Y):
    """phi(x) . phi(y) with the weights put back."""
    total = 0.0
    (a, la), (b, lb) = (phi(jnp.asarray(x, jnp.float32)) for x in (x, y))
    total = float(a @ b)
    return total * np.exp(sum(float(w) for w in (la, lb) if w is not None))


def dpfp(nu):
    def define(x):
        r = np.maximum(np.concatenate([x, -x]), 0)
        return np.array(
            [r[i] * r[(i + s) % len(r)] for s in range(1, nu + 1) for i in range(len(r))]
        )

    return define(X) @ define(Y)


W = RNG.normal(size=(5, 6))
KERNELS = {
    "elu": (maps.elu_plus_one, oracle.elu_plus_one(X) @ oracle.elu_plus_one(Y)),
    "relu": (maps.relu, np.maximum(X, 0) @ np.maximum(Y, 0)),
    "squared relu": (maps.squared_relu, np.maximum(X, 0) ** 2 @ np.maximum(Y, 0) ** 2),
    "unit": (maps.unit, X @ Y / np.sqrt((X @ X + 1e-6) * (Y @ Y + 1e-6))),
    "dpfp 1": (maps.dpfp, dpfp(1)),
    "dpfp 3": (lambda x: maps.dpfp(x, nu=3), dpfp(3)),
    "taylor": (maps.taylor, 1 + X @ Y / 6**0.5 + (X @ Y) ** 2 / 12),
    "random fourier": (
        lambda x: maps.random_fourier(x, jnp.asarray(W)),
        np.cos(W @ (X - Y)).mean(),
    ),
    "favor": (
        lambda x: maps.favor(x, jnp.asarray(W)),
        np.exp(W @ (X + Y) - X @ X / 2 - Y @ Y / 2).mean(),
    ),
    "hedgehog": (lambda x: maps.hedgehog(x, jnp.asarray(W.T)), 2 * np.cosh(W @ (X + Y)).sum()),
}


@pytest.mark.parametrize("name", ["elu", "squared_relu", "softmax", "unit", "taylor"])
def test_a_zero_has_the_slope_of_both_its_sides(name):
    # elu's was half of it: where two branches tie, jax.numpy.minimum takes the mean of their slopes
    with jax.enable_x64():
        phi = lambda x: maps.FEATURE_MAPS[name](x)[0]
        zero, toward = jnp.zeros(6), jnp.asarray(X)
        got = jax.jvp(phi, (zero,), (toward,))[1]
        want = (phi(1e-6 * toward) - phi(-1e-6 * toward)) / 2e-6
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sine_and_cosine_are_as_exact_as_xlas():
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=4000) * 10 ** rng.uniform(-6, 3.3, 4000)
    x = np.append(drawn, np.arange(-40, 41) * np.pi / 4).astype(np.float32)
    exact = np.float64(x)
    for got, want in zip(jax.jit(sin_cos)(x), (np.sin(exact), np.cos(exact))):
        np.testing.assert_allclose(got, want, atol=2e-7)
    beyond = jnp.float32([1e6, -1e20, 3e38])
    assert all(jnp.abs(x).max() <= 1 for x in sin_cos(beyond))
    assert all(jnp.isnan(x).all() for x in sin_cos(jnp.float32([jnp.nan, jnp.inf, -jnp.inf])))
    slope, at = jax.grad(lambda x: sin_cos(x)[0] + 2 * sin_cos(x)[1]), jnp.float32(0.7)
    np.testing.assert_allclose(slope(at), np.cos(0.7) - 2 * np.sin(0.7), atol=1e-6)
    np.testing.assert_allclose(jax.grad(slope)(at), -np.sin(0.7) - 2 * np.cos(0.7), atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_products_are_the_papers(name):
    phi, want = KERNELS[name]
    np.testing.assert_allclose(kernel(phi), want, rtol=1e-5)


def test_cosines_are_of_the_distance():
    phi = lambda x, angle: maps.cos_reweighted(jnp.asarray(x, jnp.float32), jnp.float32(angle))[0]
    want = np.maximum(X, 0) @ np.maximum(Y, 0) * np.cos(0.9 - 0.2)
    np.testing.assert_allclose(phi(X, 0.9) @ phi(Y, 0.2), want, rtol=1e-5)


def test_taylor_has_half_of_the_squares():
    assert maps.taylor(jnp.ones(16))[0].shape == (1 + 16 + 16 * 17 // 2,)


@pytest.mark.parametrize("name", maps.FEATURE_MAPS)
def test_zero_vectors_have_gradients(name):
    grad = jax.grad(lambda x: maps.FEATURE_MAPS[name](x)[0].sum())(jnp.zeros(4))
    assert np.isfinite(grad).all()


@pytest.mark.parametrize("name", maps.FEATURE_MAPS)
def test_linear_takes_every_name_and_callable(name):
    mechanism = Linear(feature_map=name, chunk=4)
    q, k, v, _ = inputs(mechanism, T=7, S=7)
    out = mechanism(q, k, v, mask=Causal())
    phi = lambda x: maps.FEATURE_MAPS[name](x)
    again = linear_attention(q, k, v, mask=Causal(), feature_map=mechanism.phi, chunk=4)
    assert (np.asarray(out) == np.asarray(again)).all()
    own = linear_attention(q, k, v, mask=Causal(), feature_map=phi, chunk=4)
    if name == "unit":  # signed: not divided where the map says so, and only there
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        w = np.einsum("bikgh,bjkh->bkgij", q.reshape(2, 7, 2, 2, 8), k)
        want = np.einsum("bkgij,bjkd->bikgd", w * np.tri(7), v).reshape(2, 7, 4, 6)
        assert rms(out - want) / rms(want) < 1e-5
    else:
        assert rms(out - own) / rms(own) < 1e-6


def test_features_are_drawn_by_a_key_under_jit():
    draw = jax.jit(maps.draw_features, static_argnums=(1, 2))
    w = draw(jax.random.key(3), 20, 8)
    np.testing.assert_allclose(
        w, maps.draw_features(jax.random.key(3), 20, 8), rtol=1e-4, atol=1e-5
    )
    first = np.asarray(w[:8], np.float64)
    products = first @ first.T
    np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-4)
    assert not (w == draw(jax.random.key(4), 20, 8)).any()


@pytest.mark.parametrize("sizes", [(0, 8), (4, 0), (-1, 8), (4, 8.0)])
def test_sizes_of_features_are_checked(sizes):
    with pytest.raises(ValueError, match=r"(features|head_dim): expected an integer from 1"):
        maps.draw_features(jax.random.key(0), *sizes)
    with pytest.raises(ValueError, match=r"(features|head_dim): expected an integer from 1"):
        maps.orthogonal_features(0, *sizes)


def test_a_seed_of_features_is_checked():
    with pytest.raises(ValueError, match="seed: expected an integer from 0"):
        maps.orthogonal_features(-1, 4, 8)
    for sizes, name in (
        ((3, [20], 8), "features"),
        (([3], 20, 8), "seed"),
        ((3, 8.0, 8), "features"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: expected an integer"):
            maps.orthogonal_features(*sizes)


def test_drawn_features_cannot_be_changed_in_place():
    """They are kept by their seed: who doubled the rows changed them in every Performer."""
    with pytest.raises(ValueError, match="read-only"):
        maps.orthogonal_features(7, 4, 8)[:] *= 2


def test_performer_takes_features_drawn_anew():
    performer = Performer(features=12, seed=3, chunk=4)
    q, k, v, learned = inputs(performer, T=7, S=7)
    assert not learned  # drawn, not trained
    own = performer(q, k, v, mask=Causal())
    drawn = maps.draw_features(jax.random.key(5), 12, 8)
    other = jax.jit(lambda w: performer(q, k, v, mask=Causal(), projection=w))(drawn)
    want = performer_attention(q, k, v, mask=Causal(), projection=drawn, chunk=4)
    assert rms(other - want) / rms(want) < 1e-6
    assert rms(other - own) / rms(own) > 1e-2
    same = performer(q, k, v, mask=Causal(), projection=performer.projection(8))
    assert rms(same - own) / rms(own) < 1e-6


def test_wrong_projections_are_named():
    q, k, v, _ = inputs(Performer())
    with pytest.raises(ValueError, match=r"projection: expected \[4, 8\], got \[4, 7\]"):
        performer_attention(q, k, v, projection=jnp.ones((4, 7)))
    with pytest.raises(ValueError, match=r"projection: expected \[5, 8\], got \[4, 8\]"):
        Performer(features=5)(q, k, v, projection=jnp.ones((4, 8)))
