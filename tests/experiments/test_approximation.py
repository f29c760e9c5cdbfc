"""The study of approximation: its formulas against draws, its parts at a small size, its command,
and a README that says what was measured."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.linearized.feature_maps import favor, random_fourier
from experiments.studies import approximation, record
from experiments.studies.approximation import __main__ as command
from experiments.studies.approximation import sweeps, theory, variants
from experiments.studies.approximation.distillation import distil, divergence, identity
from experiments.studies.approximation.errors import NAMES, errors, exact, results
from experiments.studies.approximation.inputs import Settings, draw

ROUNDING = 1e-5
SMALL = Settings(
    draws=2,
    steps=4,
    width=8,
    length=20,
    features=16,
    scales=(0.5, 1.0),
    counts=(16, 32),
    fourier_counts=(16, 32),
    counted_scales=(0.5,),
    fitted_from=16,
    lengths=(20,),
    windows=(0, 20),
    widths=(8,),
    learned=(4,),
    train_length=12,
    batch=2,
)


def estimates(phi, x, y, draws: int) -> np.ndarray:
    """phi(x) . phi(y) by one random row at a time, [draws]."""
    rows = jax.random.normal(jax.random.key(0), (draws, 1, len(x)))
    return np.asarray(jax.vmap(lambda w: phi(x, w) @ phi(y, w))(rows), np.float64)


def favor_product(x, w):
    features, log_weight = favor(x, w)
    return features * jnp.exp(log_weight)


@pytest.fixture
def rows():
    """q and keys [3], small enough for the variance of the variance to be finite in practice."""
    q, *k = 0.3 * jax.random.normal(jax.random.key(3), (4, 4))
    return q, jnp.stack(k)


def test_softmax_does_not_differ_from_itself():
    for mask in (attn.FULL, attn.Causal()):
        x = draw(0, 20, 8, 1.0)
        found = errors(attn.Softmax(), x, {}, exact(x, mask), mask)
        assert found == dict.fromkeys(NAMES, 0)


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_logits_have_the_deviation_asked_for(share):
    x = draw(0, 400, 32, 2.0, share)
    logits = x.q[:, 0] @ x.k[:, 0].T / 32**0.5
    assert abs(float(logits.std()) - 2) < 0.1


def favor_variance(q, k):
    """Var = K^2 (exp(|q + k|^2) - 1) / m of FAVOR+'s estimate of K = exp(q . k), with m rows drawn
    independently, for m = 1 (Choromanski et al. 2020, arXiv:2009.14794, Lemma 2)."""
    return np.exp(2 * (q * k).sum(-1)) * np.expm1(np.square(q + k).sum(-1))


def fourier_variance(q, k):
    """Var = (1 - exp(-|q - k|^2))^2 / (2 m) of sines' and cosines' estimate of
    exp(-|q - k|^2 / 2), for m = 1 (the trigonometric case of the same lemma)."""
    return np.square(-np.expm1(-np.square(q - k).sum(-1))) / 2


def test_the_variance_of_favor_is_that_of_the_paper(rows):
    q, k = rows
    found = estimates(favor_product, q, k[0], 200_000)
    exact_value = np.exp(float(q @ k[0]))
    assert abs(found.mean() / exact_value - 1) < 0.01
    expected = favor_variance(np.asarray(q), np.asarray(k[0]))
    assert abs(found.var() / expected - 1) < 0.1


def test_the_variance_of_fourier_features_is_that_of_the_paper(rows):
    q, k = rows
    found = estimates(lambda x, w: random_fourier(x, w)[0], q, k[0], 200_000)
    assert abs(found.mean() - np.exp(-float(jnp.square(q - k[0]).sum()) / 2)) < 0.01
    expected = fourier_variance(np.asarray(q), np.asarray(k[0]))
    assert abs(found.var() / expected - 1) < 0.05


@pytest.mark.parametrize("name", ["favor", "fourier"])
def test_covariances_of_relative_errors(name, rows):
    q, k = rows
    phi = {"favor": favor_product, "fourier": lambda x, w: random_fourier(x, w)[0]}[name]
    kernel = {
        "favor": lambda y: np.exp(float(q @ y)),
        "fourier": lambda y: np.exp(-float(jnp.square(q - y).sum()) / 2),
    }[name]
    found = np.cov([estimates(phi, q, y, 200_000) / kernel(y) for y in k])
    expected = getattr(theory, f"{name}_covariance")(np.asarray(q), np.asarray(k))
    np.testing.assert_allclose(found, expected, atol=0.05 * expected.max())


def test_variances_are_the_diagonals_of_the_covariances(rows):
    q, k = map(np.asarray, rows)
    relative = np.diag(theory.favor_covariance(q, k)) * np.exp(2 * k @ q)
    np.testing.assert_allclose(relative, favor_variance(q, k), rtol=1e-5)
    square = np.exp(-np.square(q - k).sum(-1))
    relative = np.diag(theory.fourier_covariance(q, k)) * square
    np.testing.assert_allclose(relative, fourier_variance(q, k), rtol=1e-5)


@pytest.mark.slow
def test_first_order_theory_meets_the_performer_at_many_features():
    x = draw(0, 30, 8, 0.1)
    truth = exact(x)
    rows = [
        variants.performer(2048, 8, seed)["performer, independent rows"].arrays
        for seed in range(12)
    ]
    found = [errors(attn.Performer(features=2048), x, w, truth)["output"] for w in rows]
    c = theory.coefficient(*sweeps.halves(x), theory.favor_covariance, 30)
    assert abs(np.sqrt(np.mean(np.square(found))) / (c / 2048**0.5) - 1) < 0.25


def test_first_order_theory_meets_fourier_features_of_independent_rows():
    # rfa's own rows are orthogonal: at small scales its error is about half of this
    q, k, v = sweeps.halves(draw(0, 30, 8, 0.1))
    w = theory.limit(np.asarray(q), np.asarray(k))
    found = []
    for rows in jax.random.normal(jax.random.key(0), (12, 2048, 8)):
        (fq, _), (fk, _) = random_fourier(q, rows), random_fourier(k, rows)
        # exp(q . k) = exp(-|q - k|^2 / 2) exp(|q|^2 / 2) exp(|k|^2 / 2)
        a = np.asarray(fq @ fk.T * jnp.exp(jnp.square(k).sum(-1) / 2))
        out = a / a.sum(-1, keepdims=True) @ v
        found.append(np.linalg.norm(out - w @ v) / np.linalg.norm(w @ v))
    c = theory.coefficient(q, k, v, theory.fourier_covariance, 30)
    assert abs(np.sqrt(np.mean(np.square(found))) / (c / 2048**0.5) - 1) < 0.25


def test_taylors_first_order_error_is_met_at_small_scales():
    x = draw(0, 30, 8, 0.1)
    found = errors(attn.Linear(feature_map="taylor"), x, {}, exact(x))["output"]
    assert abs(found / theory.taylor_error(*sweeps.halves(x)) - 1) < 0.1


@pytest.mark.slow
def test_rfa_tends_to_its_limit():
    x = draw(0, 20, 8, 0.5)
    gap = {}
    for m in (64, 4096):
        call, arrays = variants.rfa(m, 8, 0, 0.5)
        gap[m] = errors(call, x, arrays, results(variants.rfa_limit, x, arrays))["output"]
    assert gap[4096] < 0.3 * gap[64]


def test_the_exponent_of_an_inverse_root():
    at = [16, 64, 256, 1024]
    mean, error = theory.exponents(at, [[c / m**0.5 for m in at] for c in (1, 2, 5)])
    assert abs(mean + 0.5) < 1e-9
    assert error < 1e-9
    noisy = np.exp(np.random.default_rng(0).normal(0, 0.05, (200, 4)))
    mean, error = theory.exponents(at, noisy / np.sqrt(at))
    assert abs(mean + 0.5) < 4 * error < 0.02


def test_the_share_of_pairs_outside_a_window():
    i, j = np.indices((20, 20))
    for window in (0, 1, 7, 20, 30):
        assert sweeps.outside(20, window) == np.mean(abs(i - j) >= window)


@pytest.mark.slow
def test_distillation_brings_hedgehog_nearer_to_softmax():
    s = Settings(steps=60, width=8, train_length=24)
    start = identity(8)
    fresh = jnp.arange(8)
    before = divergence(start, fresh, s, 1.0)
    after = divergence(distil(start, 1.0, s=s)[0], fresh, s, 1.0)
    assert 0 < after < before


@pytest.mark.slow
def test_the_command_writes_its_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "Settings", lambda **changes: SMALL)
    assert command.main([f"--out={tmp_path}", "--seeds=2", "--steps=4"]) == 0
    assert "README.md" in capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())
    assert record.renewed((tmp_path / "README.md").read_text(), command.blocks(found))
    assert {p.stem for p in tmp_path.glob("*.png")} == {p.stem for p in tmp_path.glob("*.svg")}
    # a window over all is exact
    assert max(found["window"]["errors"]["0.5"]["20"]["output"]) < ROUNDING


def test_the_readme_says_what_was_measured():
    found = json.loads((command.FOLDER / "results.json").read_text())
    text = (command.FOLDER / "README.md").read_text()
    assert record.renewed(text, command.blocks(found)) == text
    assert found["run"]["command"] in text
    pictures = re.findall(r"\]\((\w+\.png)\)", text)
    assert len(pictures) == 3
    for linked in re.findall(r"\]\(([\w./]+)\)", text):
        assert (command.FOLDER / linked).exists(), linked
    sizes = [p.stat().st_size for p in command.FOLDER.glob("*.*") if p.suffix != ".py"]
    assert sum(sizes) < 500_000


def test_mistakes_in_the_command_are_named(capsys):
    assert command.main(["--seeds=0"]) == 2
    assert "--seeds: expected at least 1" in capsys.readouterr().err
    assert approximation.__doc__.strip().endswith("?")
