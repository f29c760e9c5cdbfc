"""The picture of the study: accuracy while the converted encoders train on."""

import numpy as np

from experiments.report import palette, plots
from experiments.studies.record import Figures, saved

COLOURS = {"mean": palette.COLOURS[0], "first": palette.COLOURS[1], "random": palette.COLOURS[3]}


def figures(results: dict) -> Figures:
    shares, runs = results["shares"], results["accuracy"]
    kept, *converted = runs
    groups = dict.fromkeys(name.partition(", ")[0] for name in converted)
    with plots.figure(3.7 * len(groups), 3.1) as fig:
        axes = fig.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for ax, group in zip(axes, groups):
            curve(ax, shares, runs[kept], palette.COLOURS[6], kept)
            for way, colour in COLOURS.items():
                curve(ax, shares, runs[f"{group}, {way}"], colour, way)
            ax.set(title=f"{group} left", xlabel="further training, % of the steps")
            ax.title.set_fontsize(9)
        axes[0].set(ylabel="accuracy", ylim=(0, 1))
        axes[-1].legend(loc="lower right")
        return {"uptraining": saved(fig, "uptraining")}


def curve(ax, shares, runs, colour: str, name: str) -> None:
    """The mean over seeds, in a band from the lowest to the highest."""
    at, values = 100 * np.array(shares), np.array(runs)
    ax.plot(at, values.mean(0), ".-", color=colour, label=name)
    ax.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)
