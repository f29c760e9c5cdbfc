"""What each variant of a comparison attends to, kept beside its run and drawn in one style."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from experiments.arrays import read_npz
from experiments.errors import DataError
from experiments.report.plots import Drawing, drawn, figure

FILE = "seen.npz"
PROBES = 16  # directions of the output for a receptive field
ROWS = 32  # of it; of a longer sequence, so many at equal distances
HALF = float(np.finfo(np.float16).max)
LARGEST = 256  # rows of a matrix that are drawn; longer ones are averaged in squares


@dataclasses.dataclass(frozen=True)
class Sight:
    """Of one run: each layer's matrix, the mean over its heads, and the receptive field."""

    layers: tuple[Float[np.ndarray, "L L"] | None, ...]  # None of one that has no matrix
    field: Float[np.ndarray, "R L"]
    about: str
    # of each layer's output to softmax's, None for one that is not in its place; None: not compared
    errors: tuple[float | None, ...] | None = None

    @property
    def error(self) -> float | None:
        """The mean over the layers that are compared."""
        there = [x for x in self.errors or () if x is not None and np.isfinite(x)]
        return float(np.mean(there)) if there else None

    def save(self, folder: Path) -> None:
        none = np.zeros((0, 0))
        layers = [none if x is None else x for x in self.layers]
        # in half the bytes, but for weights that no softmax divides and that would be infinite
        kind = lambda x: np.float16 if np.abs(x).max(initial=0) < HALF else np.float32
        arrays = {f"layer{n}": x.astype(kind(x)) for n, x in enumerate(layers)}
        arrays |= {name: np.array(json.dumps(getattr(self, name))) for name in ("about", "errors")}
        np.savez_compressed(folder / FILE, field=self.field, **arrays)

    @classmethod
    def load(cls, folder: Path) -> "Sight | None":
        """None if the run was not looked at, or if the file cannot be read."""
        try:
            found = read_npz(folder / FILE)
            maps = [_matrix(x) for k, x in found.items() if k.startswith("layer")]
            layers = tuple(x if x.size else None for x in maps)
            said = lambda name: json.loads(str(found[name])) if name in found else None
            errors = said("errors")
            if errors is not None:
                errors = tuple(None if x is None else float(x) for x in errors)
            return cls(layers, _matrix(found["field"]), str(said("about")), errors)
        except (DataError, ValueError, KeyError, TypeError, RecursionError):
            return None


def _matrix(x: np.ndarray) -> Float[np.ndarray, "R L"]:
    """The numbers of a file that are to be drawn. Raises ValueError for others."""
    if x.ndim != 2 or x.dtype.kind != "f":
        raise ValueError(f"expected a matrix of numbers, got {x.dtype}{list(x.shape)}")
    return x.astype(np.float32)


AVERAGED = f"More than {LARGEST} rows or columns are drawn as means of several."
ATTENDING = (
    "All at the first test example, one seed each: the effective matrix of each layer, mean over "
    "heads (row i is how much query i takes from each key, first query on top), and the receptive "
    "field of the whole encoder: the norm of the Jacobian of its output at i by its embedded input "
    f"at j, of at most {ROWS} i at equal distances, estimated from {PROBES} random directions of "
    "the output. Each from 0 (dark) to its largest value, written below; where weights can be "
    f"negative, from blue through white to red. {AVERAGED} "
    "Each head by itself: python -m experiments.visualize."
)
PREFIX = "attention-"


def attending(sights: Mapping[str, Sight]) -> Iterator[tuple[Drawing, str]]:
    """(picture, caption) of each variant that could be looked at."""
    frames = functools.cache(frame)  # axes take longer to make than to fill
    for n, (name, sight) in enumerate(sights.items()):
        if sight.field.size:
            fig = frames(sum(x is not None for x in sight.layers) + 1)
            yield draw(sight, fig, f"{PREFIX}{n}"), f"{name}: {sight.about}{_apart(sight)}"


def _apart(sight: Sight) -> str:
    """How far each layer is from softmax, if that was asked."""
    if sight.error is None:
        return ""
    each = ["—" if x is None else f"{100 * x:.1f}%" for x in sight.errors]
    return f"; error of each layer to softmax: {', '.join(each)}"


def is_sight(drawing: Drawing) -> bool:
    return drawing.name.startswith(PREFIX)


def frame(count: int) -> Figure:
    """So many empty axes side by side, at least with room for two: a page shows all figures as
    wide as each other, and one alone would be twice as large."""
    room = max(count, 2)
    with figure(1.75 * room, 2.05) as fig:
        # there may be many pictures: constrained layout takes most of the time
        fig.set_layout_engine("none")
        places = {"left": 0.02, "right": 0.98, "bottom": 0.1, "top": 0.9, "wspace": 0.08}
        for ax in fig.subplots(1, room, gridspec_kw=places)[count:]:
            ax.remove()
        return fig


def draw(sight: Sight, fig: Figure, name: str) -> Drawing:
    """The layers' matrices and the receptive field, in a `frame` and in place of what it held."""
    titled = [(x, f"layer {n}") for n, x in enumerate(sight.layers, 1) if x is not None]
    for ax, one in zip(fig.axes, [*titled, (sight.field, "receptive field")], strict=True):
        for image in [*ax.images]:
            image.remove()
        matrix(ax, *one)
    return drawn(fig, name)


def matrix(ax, values: Float[np.ndarray, "R L"], title: str) -> None:
    """From 0 to its own largest weight; low-rank variants have negative weights too."""
    top = float(np.abs(values).max(initial=0)) or 1.0
    signed = values.min(initial=0) < -1e-6
    scale = {"cmap": "RdBu_r", "vmin": -top} if signed else {"cmap": "viridis", "vmin": 0}
    ax.grid(False)
    ax.set_axis_on()
    # "none": an SVG holds each weight once, as one pixel, and not as drawn at some resolution
    ax.imshow(averaged(values), vmax=top, interpolation="none", aspect="auto", **scale)
    ax.set_box_aspect(1)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=8, pad=3)
    ax.set_xlabel(f"{'±' if signed else 'max '}{top:.2g}", fontsize=7, labelpad=2)


def averaged(values: Float[np.ndarray, "R L"]) -> Float[np.ndarray, "r l"]:
    """Means of blocks, so that neither side has more than LARGEST."""
    R, L = (-(-n // LARGEST) for n in values.shape)
    if R == L == 1:
        return values
    pad = [(0, -n % size) for n, size in zip(values.shape, (R, L))]
    padded = np.pad(values, pad, constant_values=np.nan)
    blocks = padded.reshape(padded.shape[0] // R, R, -1, L)
    return np.nanmean(blocks, axis=(1, 3))
