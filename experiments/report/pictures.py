"""The pictures of a comparison, each with what is to be read under it."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from experiments.report import learning, palette, slices
from experiments.report.data import Variant, curves
from experiments.report.plots import Drawing
from experiments.report.tradeoff import Point, state, tradeoff

Captioned = tuple[Drawing, str]
TRADEOFF = (
    "Accuracy against speed, area for memory: test accuracy of the checkpoint that is best on "
    "validation (bars: 95% interval of seeds and test rows, with an arrow where it goes on), "
    "steps per second {measured}, and peak bytes of the whole train step. Baselines, whose "
    "accuracies are those on validation, are dashed where near enough; all: {baselines}."
)
TURNS = "measured in turns within each comparison (1 / the median of a step)"
TRAINING = "while training (beside whatever else ran)"
STATE = (
    "Accuracy against the bytes that all layers hold to decode one sequence of the task's length, "
    "that of the longest asked, logarithmic; what does not decode is not here, nor a model that is "
    "not causal, whose accuracy is that of no decoder."
)
SLICES = (
    "Test accuracy, %, by slice of the task, mean over seeds; from 0 (dark blue) to 100 (yellow)."
)
MEAN = "Mean over seeds, of so many variants without the band from the lowest to the highest."
BAND = "Mean over seeds, in a band from the lowest to the highest seed."
ONE = "One seed each."
CURVES = (
    ("loss", 1, "training loss"),
    ("validation.loss", 1, "validation loss"),
    ("validation.accuracy", 100, "validation accuracy, %"),
)


def pictures(rows: Sequence[Variant], baselines: dict[str, float]) -> Iterator[Captioned]:
    """What there is to draw."""
    called = palette.called([row.name for row in rows])
    rows = [dataclasses.replace(row, name=called[row.name]) for row in rows]
    looks = palette.looks([row.name for row in rows])
    percent = {name: 100 * x for name, x in baselines.items()}
    named = ", ".join(f"{name} {x:.1f}" for name, x in percent.items()) or "none"
    points, measured = _speeds(rows)
    if points:
        how, *_ = measured.partition(" (")  # the rest is in the caption: there is no room for it
        xlabel = f"steps per second, {how}"
        drawing, unnamed = tradeoff(points, percent, looks, xlabel=xlabel)
        yield drawing, TRADEOFF.format(measured=measured, baselines=named) + _missing(unnamed)
    if points := _points(rows, lambda row: row.cost.get("decode_state_bytes")):
        drawing, unnamed = state(points, percent, looks)
        yield drawing, STATE + _missing(unnamed)
    if panels := slices.panels(rows):
        yield slices.heat(panels), SLICES
    band = MEAN if len(rows) > palette.MANY else BAND
    for key, scale, label in CURVES:
        series = {row.name: curves(row, key, scale) for row in rows}
        if most := max(map(len, series.values()), default=0):
            name = key.replace(".", "-")
            drawing = learning.curves(series, looks, ylabel=label, name=name, log=scale == 1)
            text = f"{label.removesuffix(', %').capitalize()}. {band if most > 1 else ONE}"
            ended = {row.name for row in rows if any(cell.result for cell in row.cells)}
            if left := [name for name, runs in series.items() if runs and name not in ended]:
                text += f" No run finished of {', '.join(left)}: as far as they came."
            yield drawing, text


def _missing(unnamed: Sequence[str]) -> str:
    return f" No room for the names of {', '.join(unnamed)}." if unnamed else ""


def _speeds(rows: Sequence[Variant]) -> tuple[list[Point], str]:
    """By the steps that took turns, side by side, where all have that; and how measured."""
    training = _points(rows, lambda row: row.mean("steps_per_second"))
    turns = _points(rows, _in_turns)
    return (turns, TURNS) if len(turns) >= len(training) else (training, TRAINING)


def _in_turns(row: Variant) -> float | None:
    return 1000 / ms if (ms := row.cost.get("step_ms")) else None


def _points(rows: Sequence[Variant], x: Callable[[Variant], float | None]) -> list[Point]:
    points = []
    for row in rows:
        place = x(row)
        if place and (found := row.interval("test")):
            mean, half = found
            points.append(Point(row.name, place, mean, half, row.cost.get("step_peak_bytes")))
    return points
