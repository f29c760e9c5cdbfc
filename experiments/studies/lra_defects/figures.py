"""Receptive fields: rows are outputs, columns the values they depend on, dark is much."""

import numpy as np

from experiments.report import plots
from experiments.studies.lra_defects.measure import DEFECTS
from experiments.studies.record import Figures, saved

TITLES = {
    "local": "local, blocks of 8",
    "sinkhorn": "sinkhorn, blocks of 8",
    "reformer": "reformer, 8 buckets",
    "performer": "performer, causal,\nlater keys times 10",
}


def figures(results: dict) -> Figures:
    with plots.figure(8.6, 4.7) as fig:
        axes = fig.subplots(2, len(DEFECTS), sharex=True, sharey=True)
        for column, name in zip(axes.T, DEFECTS):
            for ax, which in zip(column, ("published", "ours")):
                x = np.asarray(results[name]["fields"][which])
                ax.imshow(x, cmap="Greys", vmin=0, vmax=100, interpolation="nearest")
                ax.grid(visible=False)
                ax.set(xticks=[0, 32, 63], yticks=[0, 32, 63])
            column[0].set_title(TITLES[name], fontsize=9)
            column[1].set_xlabel("value")
        for row, words in zip(axes, ("as published", "ours")):
            row[0].set_ylabel(f"{words}\noutput")
        return {"fields": saved(fig, "fields")}
