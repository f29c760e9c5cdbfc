"""Rotary positions against complex numbers in float64, their laws, and Hugging Face's rates."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.positions import Rotary, rotary, xpos_scale

RNG = np.random.default_rng(0)
Q, K = (RNG.normal(size=(23, 2, 12)) for _ in range(2))
FORMS = [
    Rotary(),
    Rotary(base=500.0, fraction=1 / 3),
    Rotary(scaling="linear", factor=4.0, fraction=0.5),
    Rotary(scaling="ntk", factor=8.0),
    Rotary(scaling="yarn", factor=4.0, original_length=100, fraction=2 / 3),
]


def rates_of(form, H=12):
    """Every paper's formula, a channel at a time."""
    R = round(form.fraction * H)
    base = form.base
    if form.scaling == "ntk":
        base *= form.factor ** (R / (R - 2))
    rates = []
    for c in range(R // 2):
        rate = base ** (-2 * c / R)
        if form.scaling == "linear":
            rate /= form.factor
        if form.scaling == "yarn":
            # the channel whose rate turns b times in the original length: 2 pi b = length rate
            at = lambda b: R / 2 * np.log(form.original_length / (2 * np.pi * b)) / np.log(base)
            low, high = np.floor(at(32)).clip(0), np.ceil(at(1)).clip(max=R - 1)
            ramp = min(max((c - low) / (high - low), 0), 1)
            rate *= 1 - ramp + ramp / form.factor
        rates.append(rate)
    return np.array(rates)


def turned(x, positions, form, power=0):
    """(x_c + i x_{c + R/2}) e^(i t rate_c) times the scales, in complex128."""
    rates = rates_of(form)
    half = len(rates)
    zeta = (np.arange(half) / half + 0.4) / 1.4
    scale = 1 + 0.1 * np.log(form.factor) if form.scaling == "yarn" else 1.0
    t = positions[:, None, None]
    z = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * t * rates)
    z = z * scale * zeta ** (power * (t - 50.0) / 512)
    return np.concatenate([z.real, z.imag, x[..., 2 * half :]], -1)


def both(form, positions, centre):
    run = jax.jit(lambda q, k, t: form(q, k, t, xpos_centre=centre))
    q, k = run(jnp.asarray(Q, jnp.float32), jnp.asarray(K, jnp.float32), jnp.asarray(positions))
    return np.asarray(q, np.float64), np.asarray(k, np.float64)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.scaling)
@pytest.mark.parametrize("centre", [None, 50.0], ids=["rotary", "xpos"])
def test_it_is_its_definition_and_scores_depend_on_the_distance_only(form, centre):
    positions = np.arange(23) * 7
    q, k = both(form, positions, centre)
    power = 0 if centre is None else 1
    np.testing.assert_allclose(q, turned(Q, positions, form, power), atol=2e-5)
    np.testing.assert_allclose(k, turned(K, positions, form, -power), atol=2e-5)
    scores = np.einsum("inh,jnh->nij", q, k)
    q, k = both(form, positions + 300, centre)
    np.testing.assert_allclose(np.einsum("inh,jnh->nij", q, k), scores, atol=1e-3)
    q, k = both(form, positions * 2, centre)
    assert abs(np.einsum("inh,jnh->nij", q, k) - scores).max() > 0.1


def test_angles_of_float64_are_float64():
    t = np.array([100_003])
    with jax.enable_x64(True):
        got = rotary(jnp.asarray(Q[:1]), jnp.asarray(t))
    np.testing.assert_allclose(got, turned(Q[:1], t, Rotary()), rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("error")
def test_an_array_of_numpys_float64_is_taken_as_jax_takes_it():
    x = np.ones((5, 1, 8))
    np.testing.assert_array_equal(rotary(x, np.arange(5)), rotary(jnp.asarray(x), np.arange(5)))


def test_the_plain_record_is_the_plain_function():
    x, t = jnp.asarray(Q, jnp.float32), jnp.arange(23)
    np.testing.assert_allclose(Rotary(base=77.0)(x, x, t)[0], rotary(x, t, base=77.0), atol=1e-6)
    half = rotary(x, t, rates=np.ones(3))
    np.testing.assert_array_equal(half[..., 6:], x[..., 6:])
    assert (rotary(x, t)[1:] != x[1:]).any(0).all()


def test_xpos_falls_with_distance_and_stays_within_float32():
    t = jnp.arange(4097)
    scale = np.asarray(xpos_scale(t, 6, centre=2048.0), np.float64)[:, 0]
    share = scale / scale[0]  # what is left of a score with the first key
    assert (np.diff(share, axis=0) < 0).all()
    assert np.isfinite(1 / scale.astype(np.float16)).all()
    zeta = (np.arange(6) / 6 + 0.4) / 1.4
    np.testing.assert_allclose(share[512], zeta, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [
        ("linear", {"factor": 4.0}, {"factor": 4.0}),
        ("yarn", {"factor": 4.0, "original_length": 2048}, {}),
        ("yarn", {"factor": 16.0, "original_length": 100, "fraction": 0.5}, {}),
        ("yarn", {"factor": 2.0, "original_length": 7, "beta_fast": 8.0}, {"beta_fast": 8.0}),
        # dynamic: at twice the length, factor f stretches f + 1 times
        ("ntk", {"factor": 4.0, "fraction": 0.5}, {"factor": 3.0}),
    ],
)
def test_rates_are_hugging_faces(kind, ours, theirs):
    pytest.importorskip("torch", reason="torch is not installed (an optional extra)")
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    form = Rotary(scaling=kind, base=5000.0, **ours)
    parameters = {
        "rope_type": "dynamic" if kind == "ntk" else kind,
        "rope_theta": 5000.0,
        "factor": form.factor,
        "partial_rotary_factor": form.fraction,
        "original_max_position_embeddings": form.original_length,
        **theirs,
    }
    config = types.SimpleNamespace(
        rope_parameters=parameters,
        standardize_rope_params=lambda: None,
        head_dim=64,
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    length = {"seq_len": 1024} if kind == "ntk" else {}
    rates, scale = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", **length)
    np.testing.assert_allclose(form.rates(64), rates.numpy(), rtol=2e-6)
    assert form.temperature == pytest.approx(scale)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base": 1.0}, "base: expected a number > 1, got 1.0"),
        ({"fraction": 0.0}, r"fraction: expected a number in \(0, 1\], got 0.0"),
        ({"scaling": "yarnn"}, "scaling: expected one of none, linear, ntk, yarn, got 'yarnn'"),
        ({"scaling": "ntk", "factor": 0.5}, "factor: expected a number >= 1, got 0.5"),
        ({"factor": 2.0}, "factor: expected 1 with scaling='none', got 2.0"),
        ({"scaling": "yarn"}, "original_length: expected an integer >= 1 with scaling='yarn'"),
        ({"original_length": 8}, "original_length: expected None but with scaling='yarn', got 8"),
        ({"beta_slow": 40.0}, "beta_fast: expected a number above beta_slow=40.0"),
    ],
)
def test_mistakes_are_named(fields, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        Rotary(**fields)
    with pytest.raises(ValueError, match=r"base: .*\nfraction: "):
        dataclasses.replace(Rotary(), base=float("nan"), fraction=2)


def test_heads_that_cannot_be_turned_are_named():
    for form, H in ((Rotary(), 5), (Rotary(fraction=0.3), 12), (Rotary(scaling="ntk"), 2)):
        with pytest.raises(ValueError, match=f"even number of channels >= ., got .* of {H}"):
            form.rates(H)
    with pytest.raises(ValueError, match="rates: expected at most 6, got 7"):
        rotary(jnp.ones((1, 1, 12)), jnp.arange(1), rates=np.ones(7))


def test_what_cannot_be_turned_is_named():
    x = jnp.ones((1, 5, 2, 8))
    wrong = r"positions: .* broadcasts to \[1, 5\], got"
    for call in (rotary, lambda x, t: Rotary()(x, x, t, xpos_centre=0.0)):
        for positions in (jnp.arange(1), jnp.arange(6), jnp.int32(0), jnp.zeros((2, 5), int)):
            with pytest.raises(ValueError, match=wrong):
                call(x, positions)
        for positions in (None, [0, 1, 2, 3, 4]):
            with pytest.raises(TypeError, match="positions: expected an array, got"):
                call(x, positions)
        for wrong_x, got in ((x.astype(int), "int32"), ([1.0, 2.0], "list")):
            with pytest.raises(TypeError, match=f"x: expected an array of floats, got {got}"):
                rotary(wrong_x, jnp.arange(5))
