"""Learning curves: a line for each variant, the mean over its seeds."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from experiments.report.axis import legend, log_axis
from experiments.report.palette import MANY, Look, size_for
from experiments.report.plots import Curve, Drawing, drawn, figure


def curves(
    series: dict[str, list[Curve]], style: dict[str, Look], *, ylabel: str, name: str, log: bool
) -> Drawing:
    """One line per variant, the mean over seeds, in a band from the lowest to the highest seed if
    there are not too `MANY` for bands to be told apart."""
    with figure(*size_for(series)) as fig:
        ax = fig.add_subplot()
        for variant, runs in series.items():
            if not runs:
                continue
            look = style[variant]
            # runs of one variant record the same steps, unless they failed
            steps = sorted(set.intersection(*(set(s) for s, _ in runs)))
            if not steps:
                continue
            values = np.array([[dict(zip(s, v))[t] for t in steps] for s, v in runs])
            point = "o" if len(steps) == 1 else None  # of which a line draws nothing
            line = {"ls": look.dash, "color": look.colour, "marker": point}
            ax.plot(steps, values.mean(0), label=variant, **line)
            if len(runs) > 1 and len(series) <= MANY:
                low, high = values.min(0), values.max(0)
                ax.fill_between(steps, low, high, color=look.colour, alpha=0.18, lw=0)
        if log:
            log_axis(ax)
        ax.set(xlabel="step", ylabel=ylabel)
        ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
        ax.set_xlim(left=0)
        if ax.lines:
            legend(fig, series)
        return drawn(fig, name)
