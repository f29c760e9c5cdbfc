"""The pictures of the study: marks are means over draws, bands go from the lowest draw to the
highest, dashes are theory."""

import numpy as np

from experiments.report import axis, palette, plots
from experiments.studies.approximation.tables import MEAN, large
from experiments.studies.record import Figures, saved

BLUE, ORANGE, GREEN, RED, SKY, PINK, GREY = palette.COLOURS
# colour and mark of each variant
LOOKS = {
    "performer": (BLUE, "o"),
    "performer, independent rows": (ORANGE, "s"),
    "performer, scale on q alone": (BLUE, "x"),
    "rfa, sigma to scale": (GREEN, "o"),
    "rfa, sigma = 1": (GREEN, "x"),
    "hedgehog, distilled": (SKY, "^"),
    "taylor, 2nd order": (RED, "o"),
    "linear (elu)": (PINK, "s"),
    "cosformer": (PINK, "^"),
    "efficient": (PINK, "v"),
    MEAN: (GREY, ""),
}
QUANTITIES = {"output": "relative error of the output", "q": "relative error of q's gradient"}
LIMITS = {"output": (0.01, 20), "q": (0.1, 30)}
FIRST_ORDER = "FAVOR+, first order theory"


def figures(results: dict) -> Figures:
    return {
        "features": features(results["features"]),
        "scale": scale(results["scale"]["errors"]),
        "budget": budget(results),
    }


def curve(ax, points: dict, variant: str, name: str) -> None:
    """The mean over draws; `points` are {x: {name: draws}}."""
    x, rows = [float(p) for p in points], [p[name] for p in points.values()]
    colour, mark = LOOKS[variant]
    face = "none" if mark in ("s", "^", "v") else colour
    style = {"marker": mark, "ms": 4, "markerfacecolor": face, "lw": 1.3, "color": colour}
    ax.plot(x, [np.mean(row) for row in rows], label=variant, **style)
    low, high = [min(row) for row in rows], [max(row) for row in rows]
    ax.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def dashed(ax, x, y, colour: str, name: str | None = None) -> None:
    ax.plot(x, y, "--", color=colour, lw=1.5, label=name)


def log_axes(ax, limits: tuple[float, float], ticks=None) -> None:
    """Logarithmic, with plain numbers; along x too if ticks are given."""
    ax.set_ylim(*limits)
    axis.log_axis(ax)
    if ticks is not None:
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()


def shared_legend(fig, ax, columns: int) -> None:
    handles, names = ax.get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=columns, handlelength=2.6)


def features(found: dict) -> tuple[str, bytes]:
    """Errors over the number of features: a column for each scale, outputs above gradients."""
    with plots.figure(2.1 * len(found) + 0.5, 5.2) as fig:
        axes = fig.subplots(2, len(found), sharex=True, sharey="row", squeeze=False)
        for column, (logits, part) in zip(axes.T, found.items()):
            for ax, name in zip(column, QUANTITIES):
                counted(ax, part, name)
            column[0].set_title(f"logits' deviation {logits}", fontsize=9)
            column[1].set_xlabel("features m (RFA: pairs)")
        for row, name in zip(axes, QUANTITIES.values()):
            row[0].set_ylabel(name)
        shared_legend(fig, axes[0, 0], 3)
        return saved(fig, "features")


def counted(ax, part: dict, name: str) -> None:
    """One panel; lines of theory's own height for outputs alone."""
    for variant in ("performer", "performer, independent rows", "rfa, sigma to scale"):
        curve(ax, part["errors"][variant], variant, name)
    at = np.array([int(m) for m in part["errors"]["performer"]], float)
    if name == "output":
        own_lines(ax, part, at)
    ax.axhline(np.mean(part[MEAN]) if name == "output" else 1, color=GREY, lw=1.3, label=MEAN)
    last = np.mean(part["errors"]["performer"][f"{at[-1]:.0f}"][name])
    slope = "slope of 1 / sqrt(m), through the last point"
    ax.plot(at, last * (at[-1] / at) ** 0.5, "--", color=GREY, lw=1.1, label=slope)
    log_axes(ax, LIMITS[name], at[:: max(1, (len(at) - 1) // 2)])


def own_lines(ax, part: dict, at) -> None:
    """First order theory, in numbers where it leaves the panel."""
    c, c_rfa, bias = (np.mean(part["theory"][n]) for n in ("performer", "rfa", "rfa, bias"))
    lines = {"FAVOR+": c / at**0.5, "RFA": (bias**2 + c_rfa**2 / at) ** 0.5}
    dashed(ax, at, lines["FAVOR+"], BLUE, FIRST_ORDER)
    dashed(ax, at, lines["RFA"], GREEN, "RFA, first order theory and bias")
    most = f"{at[-1]:.0f}"
    rfa = np.mean(part["errors"]["rfa, sigma to scale"][most]["output"])
    ends = {f"theory, {n}": y[-1] for n, y in lines.items()} | {"measured, RFA": rfa}
    above = [f"{n} {large(y)}" for n, y in ends.items() if y > LIMITS["output"][1]]
    if above:
        text = "\n".join([f"off the panel, m = {most}:", *above])
        ax.text(0.05, 0.05, text, transform=ax.transAxes, fontsize=8)


def scale(found: dict) -> tuple[str, bytes]:
    """Errors over the logits' scale, with what Taylor's remainder and Lemma 2 say of outputs."""
    with plots.figure(8.8, 5.0) as fig:
        axes = fig.subplots(1, 2)
        at = np.array([float(s) for s in found])
        for ax, (name, words) in zip(axes, QUANTITIES.items()):
            for variant in LOOKS:
                if variant != "performer, independent rows":
                    points = {s: part[variant] for s, part in found.items()}
                    curve(ax, points, variant, name)
            log_axes(ax, (0.005, 40), at)
            ax.set(xlabel="deviation of the logits (scale)", ylabel=words)
        of = lambda name: np.array([np.mean(part["theory"][name]) for part in found.values()])
        dashed(axes[0], at[at <= 1], of("taylor")[at <= 1], RED, "taylor, if s^3 / 6 is lost")
        dashed(axes[0], at, of("performer"), BLUE, FIRST_ORDER)
        shared_legend(fig, axes[0], 3)
        return saved(fig, "scale")


def budget(results: dict) -> tuple[str, bytes]:
    """Errors of outputs over length, and Based's over its window."""
    with plots.figure(8.8, 4.4) as fig:
        left, right = fig.subplots(1, 2)
        lengths(left, results["length"])
        windows(right, results["window"])
        shared_legend(fig, left, 4)
        return saved(fig, "budget")


def lengths(ax, found: dict) -> None:
    for variant in LOOKS:
        if variant != "performer, scale on q alone":
            curve(ax, {n: part[variant] for n, part in found.items()}, variant, "output")
    at = [int(n) for n in found]
    dashed(ax, at, [np.mean(p["theory"]["performer"]) for p in found.values()], BLUE, FIRST_ORDER)
    log_axes(ax, (0.005, 2), at)
    ax.set(xlabel="length T", ylabel=QUANTITIES["output"])


def windows(ax, found: dict) -> None:
    """A window over everything is exact, and not drawn."""
    share = np.array(list(found["outside"].values()))
    for (logits, points), colour in zip(found["errors"].items(), (PINK, BLUE, GREEN, ORANGE, RED)):
        rows = np.array([p["output"] for p in points.values()])[share > 0]
        at = np.array([int(w) for w in points])[share > 0]
        ax.plot(at, rows.mean(1), "o", ms=4, color=colour)
        ax.fill_between(at, rows.min(1), rows.max(1), color=colour, alpha=0.15, lw=0)
        dashed(ax, at, rows[0].mean() * share[share > 0] ** 0.5, colour)
        beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(f"scale {logits}", (at[-1], rows[-1].mean()), color=colour, **beside)
    log_axes(ax, (1e-4, 2))
    ax.set(xlabel="window of Based, dashed: sqrt(pairs outside)", ylabel=QUANTITIES["output"])
    ax.set_xlim(right=1.35 * at[-1] + 1)
