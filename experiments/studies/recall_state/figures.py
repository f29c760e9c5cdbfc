"""The picture of the study: accuracy by bytes of state, a line for each family."""

from experiments.report import axis, palette, plots
from experiments.studies.recall_state.runs import EXACT
from experiments.studies.recall_state.tables import means, ordered
from experiments.studies.record import Figures, saved


def figures(results: dict) -> Figures:
    found = results["accuracy"]
    looks = palette.looks(list(found))
    with plots.figure(6.4, 3.8) as fig:
        ax = fig.subplots()
        for name, sizes in found.items():
            at, scores = [int(size) for size in ordered(sizes)], means(sizes)
            marker = {"marker": "*", "ms": 11} if name == EXACT else {"marker": "o", "ms": 4}
            style = marker | {"color": looks[name].colour, "ls": looks[name].dash}
            ax.plot(at, [100 * x for x in scores], label=name, **style)
        for name, value in results["baselines"].items():
            ax.axhline(100 * value, color=plots.INK, lw=0.7, ls=":")
            place = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "bottom"}
            ax.text(1, 100 * value, name, fontsize=7, **place)
        axis.size_axis(ax, [int(size) for sizes in found.values() for size in sizes])
        ax.set(xlabel="bytes of state, all layers", ylabel="test accuracy, %", ylim=(0, 103))
        fig.legend(loc="outside right center")
        return {"state": saved(fig, "state")}
