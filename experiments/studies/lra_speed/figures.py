"""The picture of the study: steps a second over the length, in the paper and here."""

from experiments.report import axis, palette, plots
from experiments.studies.lra_speed.measure import BLOCKS, DRAWN
from experiments.studies.lra_speed.published import LENGTHS, SPEED
from experiments.studies.lra_speed.tables import faster
from experiments.studies.record import Figures, saved


def figures(r: dict) -> Figures:
    lengths, looks = list(r["lengths"]), palette.looks([BLOCKS, *SPEED])
    at = [int(n) for n in lengths]
    names = [name for name in r["lengths"][lengths[-1]] if name != DRAWN]
    with plots.figure(9.4, 3.8) as fig:
        axes = fig.subplots(1, 3, sharey=True)
        panels = {
            "paper: against its Transformer": (LENGTHS, SPEED),
            "here: against materialized softmax": (at, against(r, names, lengths, DRAWN)),
            "here: against softmax in blocks": (at, against(r, names, lengths, BLOCKS)),
        }
        for ax, (title, (x, lines)) in zip(axes, panels.items()):
            for name, speeds in lines.items():
                style = {"color": looks[name].colour, "ls": looks[name].dash, "marker": "o"}
                ax.plot(x, speeds, label=name, ms=3.5, **style)
            ax.axhline(1, color=plots.INK, lw=0.7, ls=":")
            ax.set(xlabel="bytes of a text", xticks=x)
            ax.set_title(title, fontsize=9)
        axes[0].set(ylabel="steps a second, as a multiple")
        axis.log_axis(axes[0])
        handles, names = axes[1].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside right center")
        return {"speed": saved(fig, "speed")}


def against(r: dict, names: list[str], lengths: list[str], other: str) -> dict[str, list[float]]:
    return {name: [faster(r, name, n, other) for n in lengths] for name in names if name != other}
