"""The measurements: errors over features, scale, length, window, width, and when causal.

An error is a list, one number for each draw of inputs and features together.
"""

from collections.abc import Iterable

import jax.numpy as jnp

import attn
from experiments.stdout import tell
from experiments.studies.approximation import theory, variants
from experiments.studies.approximation.distillation import distil, learned, random_maps
from experiments.studies.approximation.errors import NAMES, errors, exact, relative, results
from experiments.studies.approximation.inputs import Inputs, Settings, draw

Found = dict[str, list[float]]  # by NAMES


def collect(rows: Iterable[dict[str, float]]) -> Found:
    """One list for each name."""
    rows = list(rows)
    return {name: [row[name] for row in rows] for name in rows[0]}


def measure(s: Settings) -> dict:
    """All parts, by name."""
    parts = {
        "features": by_features,
        "scale": by_scale,
        "length": by_length,
        "window": by_window,
        "width": by_width,
        "hedgehog": by_learned_features,
        "causal": causal,
    }
    found = {}
    for name, part in parts.items():
        found[name] = part(s)
        tell(f"{name}: measured")
    return found


def halves(x: Inputs) -> tuple:
    """(q, k, v) of one head as FAVOR+ takes them, q and k over H^(1/4)."""
    root = x.q.shape[-1] ** 0.25
    return x.q[:, 0] / root, x.k[:, 0] / root, x.v[:, 0]


def by_features(s: Settings) -> dict:
    """Errors of the random maps over their number of features, theory's lines, and the fits."""
    found = {}
    for scale in s.counted_scales:
        draws = [draw(n, s.length, s.width, scale) for n in range(s.draws)]
        truths = [exact(x) for x in draws]
        names = (*variants.FOLD, "rfa, sigma to scale", "rfa, to its own limit")
        curves = {name: {} for name in names}
        for m in sorted({*s.counts, *s.fourier_counts}):
            rows: dict[str, list] = {}
            for n, (x, truth) in enumerate(zip(draws, truths)):
                for name, found_errors in counted(s, m, n, scale, x, truth).items():
                    rows.setdefault(name, []).append(found_errors)
            for name, row in rows.items():
                curves[name][str(m)] = collect(row)
        found[f"{scale:g}"] = {
            "errors": curves,
            "fits": {name: fits(curve, s.fitted_from) for name, curve in curves.items()},
            "theory": collect(lines(s, x, truth, scale) for x, truth in zip(draws, truths)),
            "mean of the values": [
                relative(variants.uniform(*x[:3], mask=attn.FULL), t[0])
                for x, t in zip(draws, truths)
            ],
        }
    return found


def counted(s: Settings, m: int, seed: int, scale: float, x: Inputs, truth) -> dict:
    """Errors of each random map with m features; RFA also against what it tends to."""
    found = {}
    if m in s.counts:
        for name, (call, arrays) in variants.performer(m, s.width, seed).items():
            found[name] = errors(call, x, arrays, truth)
    if m in s.fourier_counts:
        call, arrays = variants.rfa(m, s.width, seed, scale)
        found["rfa, sigma to scale"] = errors(call, x, arrays, truth)
        own = results(variants.rfa_limit, x, arrays)
        found["rfa, to its own limit"] = errors(call, x, arrays, own)
    return found


def fits(curve: dict[str, Found], least: int) -> dict:
    """The exponent of the error over features, from `least` features on: (mean, its error)."""
    at = [int(m) for m in curve if int(m) >= least]
    rows = lambda name: list(zip(*(curve[str(m)][name] for m in at)))
    enough = len(at) > 1 and len(rows("output")) > 1
    return {name: theory.exponents(at, rows(name)) if enough else None for name in NAMES}


def lines(s: Settings, x: Inputs, truth, scale: float) -> dict[str, float]:
    """Coefficients c of the first order error c / sqrt(m), and RFA's bias.

    RFA's error against exact attention is sqrt(bias^2 + c^2 / m)."""
    q, k, v = halves(x)
    sigma = variants.rfa(1, q.shape[-1], 0, scale).arrays
    own = results(variants.rfa_limit, x, sigma)[0]
    unit = lambda y: sigma["sigma"] * variants.unit(y)[0]
    own_size = float(jnp.linalg.norm(own) / jnp.linalg.norm(truth[0]))
    fourier = theory.coefficient(unit(q), unit(k), v, theory.fourier_covariance, s.theory_rows)
    return {
        "performer": theory.coefficient(q, k, v, theory.favor_covariance, s.theory_rows),
        "rfa": fourier * own_size,
        "rfa, to its own limit": fourier,
        "rfa, bias": relative(own, truth[0]),
    }


def by_scale(s: Settings) -> dict:
    """Errors of every variant over the logits' scale; the performer's also with it on q alone."""
    found, divergences = {}, {}
    for scale in s.scales:
        maps, divergences[f"{scale:g}"] = learned(s, scale)
        rows: dict[str, list] = {}
        for n in range(s.draws):
            x = draw(n, s.length, s.width, scale)
            truth = exact(x)
            for name, (call, arrays) in variants.every(s, n, n, scale, maps).items():
                rows.setdefault(name, []).append(errors(call, x, arrays, truth))
            alone = draw(n, s.length, s.width, scale, share=1)
            call, arrays = variants.performer(s.features, s.width, n)["performer"]
            row = errors(call, alone, arrays, exact(alone))
            rows.setdefault("performer, scale on q alone", []).append(row)
            q, k, v = halves(x)
            row = {
                "performer": theory.coefficient(q, k, v, theory.favor_covariance, s.theory_rows)
                / s.features**0.5,
                "taylor": theory.taylor_error(q, k, v),
            }
            rows.setdefault("theory", []).append(row)
        found[f"{scale:g}"] = {name: collect(row) for name, row in rows.items()}
    return {"errors": found, "divergence": divergences}


def by_length(s: Settings, rows: int = 8) -> dict:
    """Errors over length; theory's from the first `rows` queries. RFA keeps the features of one
    seed (each seed is a new program): normal inputs turn them anyway."""
    maps, _ = learned(s, s.scale)
    found = {}
    for length in s.lengths:
        each: dict[str, list] = {}
        for n in range(s.draws):
            x = draw(n, length, s.width, s.scale)
            truth = exact(x)
            for name, (call, arrays) in variants.every(s, n, 0, s.scale, maps).items():
                each.setdefault(name, []).append(errors(call, x, arrays, truth))
        q, k, v = halves(x)
        c = theory.coefficient(q, k, v, theory.favor_covariance, rows)
        found[str(length)] = {name: collect(row) for name, row in each.items()}
        found[str(length)]["theory"] = {"performer": [c / s.features**0.5]}
    return found


def by_window(s: Settings) -> dict:
    """Errors of Based over its window, and the share of pairs that it leaves outside."""
    found = {}
    for scale in s.counted_scales:
        draws = [draw(n, s.length, s.width, scale) for n in range(s.draws)]
        truths = [exact(x) for x in draws]
        found[f"{scale:g}"] = {
            str(w): collect(
                errors(attn.Based(window=w), x, {}, truth) for x, truth in zip(draws, truths)
            )
            for w in s.windows
        }
    return {"errors": found, "outside": {str(w): outside(s.length, w) for w in s.windows}}


def outside(length: int, window: int) -> float:
    """The share of pairs with |i - j| >= window."""
    left = max(0, length - window)
    return left * (left + 1) / length**2 if window else 1.0


def by_width(s: Settings) -> dict:
    """The performer's errors over the heads' width at one scale, and theory's coefficient."""
    found = {}
    for width in s.widths:
        rows = []
        for n in range(s.draws):
            x = draw(n, s.length, width, s.scale)
            call, arrays = variants.performer(s.features, width, n)["performer"]
            c = theory.coefficient(*halves(x), theory.favor_covariance, s.theory_rows)
            row = errors(call, x, arrays, exact(x)) | {"theory": c / s.features**0.5}
            rows.append(row)
        found[str(width)] = collect(rows)
    return found


def by_learned_features(s: Settings) -> dict:
    """Hedgehog's errors with so many features (two for each learned row), from random maps."""
    found = {}
    for features in s.learned:
        maps, _ = distil(random_maps(s.width, features), s.scale, s=s)
        rows = []
        for n in range(s.draws):
            x = draw(n, s.length, s.width, s.scale)
            call, arrays = variants.hedgehog(maps)
            rows.append(errors(call, x, arrays, exact(x)))
        found[str(2 * features)] = collect(rows)
    return found


def causal(s: Settings) -> dict:
    """Errors of every variant under `Causal`; the hedgehog's maps are those learned without."""
    maps, _ = learned(s, s.scale)
    rows: dict[str, list] = {}
    for n in range(s.draws):
        x = draw(n, s.length, s.width, s.scale)
        truth = exact(x, attn.Causal())
        for name, (call, arrays) in variants.every(s, n, n, s.scale, maps).items():
            found = errors(call, x, arrays, truth, attn.Causal())
            rows.setdefault(name, []).append(found)
    return {name: collect(row) for name, row in rows.items()}
