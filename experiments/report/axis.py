"""Logarithmic axes, bytes and legends that can be read."""

import math
import textwrap
from collections.abc import Collection, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator


def log_axis(ax) -> None:
    """A logarithmic y axis that has numbers also where it spans less than a decade."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_formatter("")


def size_axis(ax, sizes: Sequence[float]) -> None:
    """A logarithmic x axis of bytes, a power of four at each tick, with room at both ends."""
    low, high = (math.log(x, 4) for x in (min(sizes), max(sizes)))
    room = max(0.6, 0.15 * (high - low))
    ax.set_xscale("log", base=4)
    ax.set_xlim(4 ** (low - room), 4 ** (high + room))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: size(v)))
    ax.xaxis.minorticks_off()


def size(number: float) -> str:
    """Bytes as 512, 4K or 1M, by powers of 1,024."""
    power = max(0, min(4, int(math.log(max(number, 1), 1024) + 1e-9)))
    n = number / 1024**power
    return f"{n:{'.0f' if n >= 100 else '.3g'}}{' KMGT'[power].strip()}"  # not 1e+03


# of a legend's lines, in letters: shorter ones are all alike behind their marker, dashed or not
HANDLE = 4.0


def legend(fig: Figure, names: Collection[str]) -> None:
    """Above the axes, each once, in as many columns as the longest name leaves room for; a name
    that alone is wider than the figure is on several lines."""
    room, beside = 72 * fig.get_figwidth(), 19 + 8.5 * HANDLE  # points; the gap and the line
    letter = 5.4
    told = {name: textwrap.fill(name, int((room - beside) / letter)) for name in names}
    lines = [line for text in told.values() for line in text.splitlines()]
    columns = max(1, min(4, int(room / (letter * max(map(len, lines), default=0) + beside))))
    rows = -(-len(lines) // columns)
    fig.set_figheight(fig.get_figheight() + 0.18 * max(0, rows - 2))
    # one by one: by itself matplotlib leaves out names that begin with an underscore
    every = (line for ax in fig.axes for line in ax.lines)
    drawn = {told[x.get_label()]: x for x in every if x.get_label() in told}
    place = {"loc": "outside upper center", "ncols": columns}
    fig.legend(drawn.values(), drawn, handlelength=HANDLE, columnspacing=1.4, **place)
