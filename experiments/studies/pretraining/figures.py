"""The picture of the study: each seed's accuracy, by variant and way."""

from experiments.report import palette, plots
from experiments.studies.pretraining.runs import WAYS
from experiments.studies.record import Figures, saved


def figures(results: dict) -> Figures:
    with plots.figure(5.2, 3.1) as fig:
        ax = fig.subplots()
        for n, (way, colour) in enumerate(zip(WAYS, palette.COLOURS)):
            for i, runs in enumerate(results["accuracy"].values()):
                at = [i + 0.25 * (n - 1)] * len(runs[way])
                label = way if i == 0 else None
                ax.plot(at, [100 * x for x in runs[way]], "o", color=colour, label=label, alpha=0.7)
        ax.set_xticks(range(len(results["accuracy"])), list(results["accuracy"]))
        ax.set(ylabel="test accuracy, %")
        ax.legend(loc="best")
        return {"accuracy": saved(fig, "accuracy")}
