"""The picture of the study: each model's accuracy here and there, the paper's best on top."""

from experiments.report import palette, plots
from experiments.studies.lra.published import ACCURACY
from experiments.studies.lra.runs import SETTINGS
from experiments.studies.lra.tables import ordered, spread
from experiments.studies.record import Figures, saved


def figures(results: dict) -> Figures:
    tasks = results["tasks"]
    with plots.figure(4.3 * len(tasks), 4.6) as fig:
        axes = fig.subplots(1, len(tasks), squeeze=False)[0]
        for ax, (task, found) in zip(axes, tasks.items()):
            panel(ax, task, found)
        handles, names = axes[0].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside upper center", ncols=3)
        return {"accuracy": saved(fig, "accuracy")}


def panel(ax, task: str, found: dict) -> None:
    names = ordered(found["settings"], task)
    published = [(ACCURACY[task][n], i) for i, n in enumerate(names) if n in ACCURACY[task]]
    ax.plot(*zip(*published), "x", color=palette.COLOURS[6], label="paper, full size")
    for n, (key, colour) in enumerate(zip(SETTINGS, palette.COLOURS)):
        rows, label = found["settings"].get(key, {}), key
        for i, name in enumerate(names):
            if name in rows:
                mean, half = spread(rows[name]["accuracy"], found["test rows"])
                style = {"fmt": "os"[n], "ms": 4, "color": colour, "elinewidth": 1}
                at = i + 0.3 * (n - 0.5)
                ax.errorbar(100 * mean, at, xerr=100 * half, label=label, **style)
                label = None
    baselines = found["baselines"]
    for x in dict.fromkeys(baselines.values()):
        word = ", ".join(name for name, y in baselines.items() if y == x)
        ax.axvline(100 * x, color=plots.INK, lw=0.7, ls=":")
        ax.text(100 * x, len(names) - 0.4, word, rotation=90, fontsize=6, va="bottom", ha="right")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set(xlabel=f"{task}: test accuracy, %")
