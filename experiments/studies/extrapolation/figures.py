"""The picture: accuracy by length, of the trained encodings and of rotary stretched."""

from statistics import fmean

from experiments.report import palette, plots
from experiments.studies.record import Figures, saved


def figures(results: dict) -> Figures:
    found = results["accuracy"]
    looks = palette.looks(list(found))
    panels = {
        "as trained": [name for name in found if "then" not in name],
        "stretched after training": [name for name in found if name.startswith("rotary")],
    }
    with plots.figure(9.0, 3.4) as fig:
        axes = fig.subplots(1, 2, sharey=True)
        for ax, (title, names) in zip(axes, panels.items()):
            for name in names:
                lengths = [int(label.split()[0]) for label in found[name]]
                runs = [[100 * x for x in seeds] for seeds in found[name].values()]
                means = list(map(fmean, runs))
                away = [
                    [mean - min(x) for mean, x in zip(means, runs)],
                    [max(x) - mean for mean, x in zip(means, runs)],
                ]
                look = looks[name]
                style = {"color": look.colour, "ls": look.dash, "elinewidth": 0.8, "ms": 3}
                ax.errorbar(lengths, means, away, label=name, marker="o", **style)
            chance = 100 * results["baselines"]["chance"]
            ax.axhline(chance, color=plots.INK, lw=0.7, ls=":", label="chance")
            ax.set_xscale("log", base=2)
            ax.set_xticks(lengths, list(map(str, lengths)))
            ax.set(title=title, xlabel="tokens", ylim=(0, 103))
        axes[0].set_ylabel("test accuracy, %")
        shown = [ax.get_legend_handles_labels() for ax in axes]
        lines = {name: line for found in shown for line, name in zip(*found)}  # each once
        fig.legend(lines.values(), lines, loc="outside right center")
        return {"accuracy": saved(fig, "accuracy")}
