"""Pictures for reports: SVG as text, colour-blind-safe, legible on light, dark and paper."""

import dataclasses
import io
import itertools
import math
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from experiments.disk import write_bytes, write_text

# Okabe and Ito's colours, blue lightened for dark pages, without black and yellow, which vanish
COLOURS = ("#1f83c4", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8a8a8a")
# the further ones, by points on and off, for more than 28 variants
DASHES = (
    "-",
    "--",
    ":",
    "-.",
    (0, (9, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (9, 2, 3, 2)),
)
# drawn in this colour and saved as `currentColor`: the page decides, light or dark
INK = "#010203"

# for letters that matplotlib's own has not, where they are installed
FONTS = (
    *(f"Noto Sans CJK {x}" for x in ("SC", "JP", "KR", "TC")),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "IPAGothic"),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Arial Unicode MS"),
    *("Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
)
SETTINGS = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # and a $ in a name stays a $
    "font.family": ["sans-serif", *filter(get_font_names().__contains__, FONTS)],
    "font.size": 9,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}


@dataclasses.dataclass(frozen=True)
class Look:
    """How one variant is drawn in every picture."""

    colour: str
    dash: str | tuple  # and bubbles are hollow where it is not solid


def looks(names: Sequence[str]) -> dict[str, Look]:
    """By place in the list: seven colours, then the same with another dash: 56 in all."""
    count = len(COLOURS)
    dash = lambda i: DASHES[i // count % len(DASHES)]
    return {name: Look(COLOURS[i % count], dash(i)) for i, name in enumerate(names)}


MANY = 14  # variants, beyond which a picture needs a page's width: for their names, and to be told


def size_for(names: Collection[str]) -> tuple[float, float]:
    """Width and height, in inches, of a picture in which so many have a line or a bubble."""
    return (10.6, 5.4) if len(names) > MANY else (5.2, 3.6)


def called(names: Sequence[str]) -> dict[str, str]:
    """What each is called in a picture: without the words before that all of them begin with."""
    split = [name.split(" ") for name in names]
    columns = zip(*(words[:-1] for words in split)) if len(names) > 1 else ()
    shared = len([*itertools.takewhile(lambda words: len({*words}) == 1, columns)])
    return {name: " ".join(words[shared:]) for name, words in zip(names, split)}


@contextmanager
def figure(width: float = 5.2, height: float = 3.6) -> Iterator[Figure]:
    """A figure in inches, apart from pyplot's global state."""
    with matplotlib.rc_context(SETTINGS):
        fig = Figure((width, height), layout="constrained")
        FigureCanvasAgg(fig)
        yield fig


def svg(fig: Figure, name: str) -> str:
    """The figure as an <svg> element for a page; `name` keeps its ids apart from other figures'."""
    out = io.StringIO()
    fig.patch.set_facecolor("none")  # white if it was drawn as a file before
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}), warnings.catch_warnings():
        # text stays text, and is drawn in the fonts of whoever looks at it
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        # not by savefig, which draws all of it twice
        FigureCanvasSVG(fig).print_svg(out, metadata={"Date": None})
    text = out.getvalue()[out.getvalue().index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor").strip()


def standalone(element: str) -> str:
    """What `svg` gives, as a file of its own."""
    return element.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def png(fig: Figure) -> bytes:
    """The figure on white."""
    out = io.BytesIO()
    fig.set_dpi(160)
    fig.patch.set_facecolor("white")
    FigureCanvasAgg(fig).print_png(out)
    return out.getvalue()


def drawn_files(folder: Path, name: str) -> tuple[Path, Path]:
    """The two files of a drawing, in the folder itself whatever the name."""
    stem = name.replace("/", "-").replace("\\", "-")
    return folder / f"{stem}.svg", folder / f"{stem}.png"


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A finished figure, without what it was drawn from: of hundreds, that is half a gigabyte. For
    a page its <svg> element, and for a folder two files."""

    name: str
    svg: str
    png: bytes
    wide: bool  # it takes all of a page's width

    def save(self, folder: Path) -> None:
        as_svg, as_png = drawn_files(folder, self.name)
        write_text(as_svg, standalone(self.svg))
        write_bytes(as_png, self.png)


def drawn(fig: Figure, name: str) -> Drawing:
    element = svg(fig, name)
    fig.set_layout_engine("none")  # all has its place: to find it again takes longer than to draw
    return Drawing(name, element, png(fig), wide=fig.get_figwidth() > 8)


Curve = tuple[Sequence[float], Sequence[float]]  # steps, values


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
    return f"{number / 1024**power:.3g}{' KMGT'[power].strip()}"


# of a legend's lines, in letters: shorter ones are all alike behind their marker, dashed or not
HANDLE = 4.0


def legend(fig: Figure, names: Collection[str]) -> None:
    """Above the axes, in as many columns as the longest name leaves room for."""
    widest = 5.4 * max(map(len, names)) + 19 + 8.5 * HANDLE  # points: letters, gap and line
    columns = max(1, min(4, int(72 * fig.get_figwidth() / widest)))
    rows = -(-len(names) // columns)
    fig.set_figheight(fig.get_figheight() + 0.18 * max(0, rows - 2))
    fig.legend(loc="outside upper center", ncols=columns, handlelength=HANDLE, columnspacing=1.4)
