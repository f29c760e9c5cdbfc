"""The picture of the study: temporaries of every mechanism."""

from matplotlib.ticker import FuncFormatter

from experiments.measure.turns import MODES
from experiments.report import palette, plots
from experiments.studies.record import Figures, saved
from experiments.studies.tpu.tables import from_most, megabytes

LEAST = 0.1  # MB: what is less is drawn there


def figures(r: dict) -> Figures:
    rows, names = r["mechanisms"], from_most(r)
    with plots.figure(6.0, 0.8 + 0.16 * len(names)) as fig:
        ax = fig.subplots()
        for mode, colour, mark in zip(MODES, palette.COLOURS, "os"):
            held = [max(LEAST, megabytes(rows[name], mode)) for name in names]
            ax.plot(held, range(len(names)), mark, ms=3.5, color=colour, label=mode)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        label = f"temporaries, MB ({LEAST:g}: at most that)"
        ax.set(xlabel=label, xscale="log", ylim=(-1, len(names)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
        ax.legend(loc="lower left")
        return {"temporaries": saved(fig, "temporaries")}
