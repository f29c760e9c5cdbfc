"""The pictures of the study: test accuracy of every run beside what is had without learning."""

import math
from collections.abc import Sequence
from statistics import fmean

from experiments.report import palette, plots
from experiments.studies.record import Figures, saved
from experiments.studies.tasks.tables import ZOO, ordered

Dot = tuple[str, dict, dict]  # a label, the model's numbers, its config's


def figures(results: dict) -> Figures:
    """`tasks`, and `zoo` if it was run."""
    configs = dict(results["configs"])
    zoo = configs.pop(ZOO, None)
    label = lambda config, model: f"{config}, {model}"
    tasks = [(label(c, m), row, x) for c, x in configs.items() for m, row in x["models"].items()]
    alike = [(name, zoo["models"][name], zoo) for name in ordered(zoo["models"])] if zoo else []
    drawn = {"tasks": tasks[::-1], "zoo": alike}  # from top to bottom, and from worst to best
    return {name: _dots(name, dots) for name, dots in drawn.items() if dots}


def _dots(name: str, dots: Sequence[Dot]) -> tuple[str, bytes]:
    """A line for each: its accuracy and each seed's, the error of the test's rows, ticks where
    baselines are."""
    places = range(len(dots))
    score = [fmean(row["accuracy"]) for _, row, _ in dots]
    error = [math.sqrt(x * (1 - x) / found["test rows"]) for x, (*_, found) in zip(score, dots)]
    seeds = [(100 * x, at) for at in places for x in dots[at][1]["accuracy"]]
    simple = [(100 * x, at) for at in places for x in dots[at][2]["baselines"].values()]
    with plots.figure(6.0, 0.6 + 0.16 * len(dots)) as fig:
        ax = fig.subplots()
        # ticks as one broken line, not as markers, which are most of the file
        broken = [(x, y) for x, at in simple for y in (at - 0.25, at + 0.25, math.nan)]
        ax.plot(*zip(*broken), color=plots.INK, lw=0.7)
        ax.plot(*zip(*seeds), "o", color=palette.COLOURS[0], ms=3, mfc="none", mew=0.5)
        style = {"fmt": "o", "ms": 3, "lw": 0.8, "color": palette.COLOURS[0]}
        ax.errorbar([100 * x for x in score], places, xerr=[196 * e for e in error], **style)
        ax.grid(visible=False, axis="y")  # a line for each of so many would be most of the file
        ax.set_yticks(places, [label for label, *_ in dots], fontsize=7)
        ax.set(xlabel="test accuracy, %", xlim=(-2, 102), ylim=(-1, len(dots)))
        return saved(fig, name)
