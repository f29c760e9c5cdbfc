"""The README's numbers, from results.json alone."""

from statistics import fmean

from experiments.studies.approximation import theory
from experiments.studies.record import Blocks, run_line, table

MEAN = "mean of the values"


def blocks(r: dict) -> Blocks:
    s = r["settings"]
    return {
        "run": run_line(r),
        "settings": settings(s),
        "features": features(r["features"]),
        "exponents": exponents(r["features"]),
        "needed": needed(r["features"], s["width"]),
        "output": by_scale(r["scale"]["errors"], "output"),
        "gradients": by_scale(r["scale"]["errors"], "q", "k"),
        "taylor": taylor(r["scale"]["errors"]),
        "window": window(r["window"]),
        "hedgehog": hedgehog(r),
        "length": length(r["length"]),
        "width": width(r["width"]),
        "causal": causal(r["causal"]),
        "answer": answer(r),
    }


def short(x: float) -> str:
    """Three digits, powers of ten from 1000 on."""
    if x == 0:
        return "0"
    if x < 9.5e-4:
        return f"{x:.1e}"
    if x < 0.995:
        return f"{x:.3f}"
    return f"{x:.2f}" if x < 10 else large(x)


def large(x: float) -> str:
    return f"{x:.0f}" if x < 1000 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def spread(values: list[float]) -> str:
    """Mean over draws, and the lowest and highest draw where they differ."""
    low, mean, high = (short(x) for x in (min(values), fmean(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def settings(s: dict) -> str:
    return (
        f"{s['draws']} draws of inputs and features together; one head of width {s['width']}; "
        f"unless said otherwise {s['length']} positions, {s['features']} features, logits of "
        f"deviation {s['scale']:g}; hedgehog distilled in {s['steps']} steps of Adam at "
        f"{s['rate']:g}, {s['batch']} sequences of {s['train_length']} each."
    )


def features(found: dict) -> str:
    head = ["scale", "variant"]
    counts = [m for m in ("16", "64", "256", "1024", "4096") if m in first(found)]
    rows = []
    for scale, part in found.items():
        for name, points in part["errors"].items():
            row = [spread(points[m]["output"]) if m in points else "" for m in counts]
            rows.append([scale, name, *row])
        rows.append([scale, MEAN, *[spread(part[MEAN])] * len(counts)])
    return table([*head, *(f"m = {m}" for m in counts)], rows)


def first(found: dict) -> dict:
    """The performer's curve at the first scale."""
    return next(iter(found.values()))["errors"]["performer"]


def exponents(found: dict) -> str:
    head = ["scale", "variant", "output", "gradient of q", "of k", "of v"]
    rows = []
    for scale, part in found.items():
        for name, fits in part["fits"].items():
            if name != "rfa, sigma to scale":
                rows.append([scale, name, *(fitted(fit) for fit in fits.values())])
    return table(head, rows)


def fitted(fit) -> str:
    return "(not fitted)" if fit is None else f"{fit[0]:.3f} ± {fit[1]:.3f}"


def needed(found: dict, head_dim: int) -> str:
    """What first order theory says, beside what was measured at the most features."""
    most = list(first(found))[-1]
    head = [
        "scale",
        f"FAVOR+, theory, m = {most}",
        "measured, independent rows",
        "orthogonal rows",
        MEAN,
        "m for 10% of the output",
        "m for 10% of a typical entry",
    ]
    rows = []
    for scale, part in found.items():
        c = fmean(part["theory"]["performer"])
        names = ("performer, independent rows", "performer")
        measured = [short(fmean(part["errors"][n][most]["output"])) for n in names]
        entry = theory.features_for(0.1, head_dim, float(scale))
        mean = short(fmean(part[MEAN]))
        at_most = short(c / int(most) ** 0.5)
        rows.append([scale, at_most, *measured, mean, large(c**2 / 0.01), large(entry)])
    return table(head, rows)


def by_scale(found: dict, *names: str) -> str:
    """A row for each variant; two numbers in a cell where there are two names."""
    variants = [n for n in next(iter(found.values())) if n != "theory"]
    cell = lambda row: " / ".join(short(fmean(row[n])) for n in names)
    if len(names) == 1:
        cell = lambda row: spread(row[names[0]])
    rows = [[v, *(cell(part[v]) for part in found.values())] for v in variants]
    return table(["variant", *(f"scale {s}" for s in found)], rows)


def taylor(found: dict) -> str:
    head = ["scale", "measured", "theory, s^3 / 6", "measured / theory"]
    rows = []
    for scale, part in found.items():
        measured = fmean(part["taylor, 2nd order"]["output"])
        expected = fmean(part["theory"]["taylor"])
        rows.append([scale, short(measured), short(expected), f"{measured / expected:.2f}"])
    return table(head, rows)


def window(found: dict) -> str:
    windows = list(found["outside"])
    rows = [["pairs outside", *(f"{100 * x:.0f}%" for x in found["outside"].values())]]
    for scale, points in found["errors"].items():
        rows.append([f"scale {scale}", *(short(fmean(points[w]["output"])) for w in windows)])
    return table(["", *(f"window {w}" for w in windows)], rows)


def hedgehog(r: dict) -> str:
    rows = []
    for scale, found in r["scale"]["divergence"].items():
        errors = r["scale"]["errors"][scale]
        before, after = found
        rows.append(
            [
                scale,
                short(found[before]),
                short(found[after]),
                *(short(fmean(errors[n]["output"])) for n in (before, after, MEAN)),
            ]
        )
    head = ["scale", "divergence untrained", "distilled", "output untrained", "distilled", MEAN]
    counts = r["hedgehog"]
    more = table(
        [f"features, scale {r['settings']['scale']:g}", *counts],
        [
            [n, *(short(fmean(row[key])) for row in counts.values())]
            for key, n in (
                ("output", "error of the output"),
                ("q", "gradient of q"),
                ("k", "gradient of k"),
            )
        ],
    )
    return table(head, rows) + "\n\n" + more


def length(found: dict) -> str:
    variants = [n for n in next(iter(found.values())) if n != "theory"]
    rows = [[v, *(short(fmean(part[v]["output"])) for part in found.values())] for v in variants]
    theory_row = [short(fmean(part["theory"]["performer"])) for part in found.values()]
    rows.append(["FAVOR+, theory", *theory_row])
    return table(["variant", *(f"T = {n}" for n in found)], rows)


def width(found: dict) -> str:
    names = {"output": "output", "q": "gradient of q", "theory": "output, theory"}
    rows = [[label, *(short(fmean(p[n])) for p in found.values())] for n, label in names.items()]
    return table(["performer, error of", *(f"width {n}" for n in found)], rows)


def causal(found: dict) -> str:
    head = ["variant, causal", "output", "gradient of q", "of k", "of v"]
    return table(head, [[n, *(short(fmean(x)) for x in row.values())] for n, row in found.items()])


def answer(r: dict) -> str:
    found, scales = r["features"], r["scale"]["errors"]
    return "\n".join([*map(favor_line, found.items()), *map(ranking, scales.items())])


def favor_line(item: tuple[str, dict]) -> str:
    """What the most features give at one scale."""
    scale, part = item
    most, last = list(part["errors"]["performer"].items())[-1]
    output, gradient = (short(fmean(last[name])) for name in ("output", "q"))
    return (
        f"* FAVOR+ at scale {scale}: with {most} features the output is off by {output} (the mean "
        f"of the values by {short(fmean(part[MEAN]))}), q's gradient by {gradient}; the error "
        f"falls as m to the {fitted(part['fits']['performer']['output'])}."
    )


def ranking(item: tuple[str, dict]) -> str:
    """The best variant of one scale, and those that are worse than no attention at all."""
    scale, part = item
    errors = {n: fmean(row["output"]) for n, row in part.items() if n not in ("theory", MEAN)}
    best = min(errors, key=errors.get)
    worse = [n for n, x in errors.items() if x > fmean(part[MEAN]["output"])]
    return (
        f"* All variants at scale {scale}: the best is {best} ({short(errors[best])}); worse than "
        f"the mean of the values: {'; '.join(worse) or 'none'}."
    )
