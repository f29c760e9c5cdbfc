"""Pictures for reports: SVG as text, colour-blind-safe, legible on light, dark and paper."""

import dataclasses
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names

from experiments.disk import write_bytes, write_text

# drawn in this colour and saved as `currentColor`: the page decides, light or dark
INK = "#010203"

Curve = tuple[Sequence[float], Sequence[float]]  # at which steps or lengths, and the values

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
