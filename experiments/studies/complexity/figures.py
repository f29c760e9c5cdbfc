"""Every mixer a line: how its work grows, its steps in a row, its paths."""

import numpy as np
from matplotlib.ticker import FuncFormatter

from experiments.report import palette, plots
from experiments.report.powers import Fit, fit
from experiments.studies.complexity.claims import CLAIMS, growths
from experiments.studies.complexity.tables import judged, lengths
from experiments.studies.record import Figures, saved

BLUE, ORANGE = palette.COLOURS[:2]


def figures(r: dict) -> Figures:
    names = list(r["mixers"])
    place = np.arange(len(names))[::-1]
    work, reach = lengths(r, "work"), lengths(r, "reach")
    terms = lambda name: zip(*(growths(CLAIMS[name].work, T) for T in work))
    claimed = [(fit(work, x).exponent, y) for n, y in zip(names, place) for x in terms(n)]
    with plots.figure(8.4, 0.17 * len(names) + 1.2) as fig:
        axes = fig.subplots(1, 3, sharey=True)
        rings(axes[0], *zip(*claimed), "claimed, each term")
        found = [counted(r, n) for n in names]
        exponents, errors = [x.exponent for x in found], [x.error or 0 for x in found]
        marks(axes[0], exponents, place, "counted, ± 95% of the fit")
        axes[0].errorbar(exponents, place, xerr=errors, fmt="none", ecolor=BLUE, elinewidth=0.8)
        axes[0].set(xlabel="work: exponent p of T^p", yticks=place, yticklabels=names)
        steps = lambda key: [r["mixers"][n][key][-1] for n in names]
        least = [max(1, n) for n in steps("steps by definition")]
        marks(axes[1], least, place, f"in the definition, T = {reach[-1]}")
        rings(axes[1], steps("steps"), place, f"in our loops, T = {work[-1]:,}", "s")
        axes[1].set(xlabel="steps in a row")
        axes[1].set_xscale("symlog", linthresh=1)  # no loop is 0
        axes[1].tick_params(axis="x", labelsize=7.5)
        marks(axes[2], [path(r, n) for n in names], place, f"layers x steps, T = {reach[-1]}")
        layers = [r["mixers"][n]["layers"][-1] or np.nan for n in names]
        rings(axes[2], layers, place, "layers")
        axes[2].set(xlabel="longest path", xscale="log")
        for ax in axes[1:]:  # in plain text: mathematics is not drawn in every browser
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes[0].set_ylim(-1, len(names))
        for ax in axes:
            ax.tick_params(axis="y", labelsize=7)
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=7.5)
        return {"complexity": saved(fig, "complexity")}


def counted(r: dict, name: str) -> Fit:
    held = judged(r, name).get("work")
    return Fit(np.nan, None) if held is None else fit(*held[1:])


def path(r: dict, name: str) -> float:
    row = r["mixers"][name]
    return (row["layers"][-1] or np.nan) * max(1, row["steps by definition"][-1])


def marks(ax, x, y, label: str) -> None:
    ax.plot(x, y, "o", ms=3.5, color=BLUE, label=label)


def rings(ax, x, y, label: str, mark: str = "o") -> None:
    """Open, so that what has the same value shows in them."""
    ax.plot(x, y, mark, ms=7, mfc="none", color=ORANGE, label=label)
