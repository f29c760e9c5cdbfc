"""Accuracy against what it costs, each variant named beside its bubble where there is room."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from experiments.report.axis import size_axis
from experiments.report.palette import Look, size_for
from experiments.report.plots import INK, Drawing, drawn, figure
from experiments.report.table import number

BEYOND = 8  # percent
Box = tuple[float, float, float, float]  # left, low, right, high, in pixels


@dataclasses.dataclass(frozen=True)
class Point:
    """A variant in a picture: accuracies in percent, `error` half an interval."""

    name: str
    x: float
    accuracy: float
    error: float | None
    bytes: float | None = None


def tradeoff(
    points: Sequence[Point], baselines: dict[str, float], style: dict[str, Look], *, xlabel: str
) -> tuple[Drawing, list[str]]:
    """Accuracy against speed with area for memory, as in Long Range Arena; and which variants there
    was no room to name."""
    largest = max((p.bytes for p in points if p.bytes), default=1)
    # diameters in points; the smallest stays visible
    size = lambda bytes: max(7.0, 30 * math.sqrt((bytes or 0) / largest))
    with figure(*size_for(points)) as fig:
        ax = fig.add_subplot()
        ax.set_xlim(0, 1.25 * max(p.x for p in points))
        ax.set_xlabel(xlabel)
        if any(p.bytes for p in points):
            for part in (1, 0.25):
                label = f"{number(part * largest / 1e6)} MB"
                ax.plot(
                    [], [], "o", ms=size(part * largest), color=INK, alpha=0.3, mew=0, label=label
                )
            fig.legend(loc="outside upper right", ncols=2, handletextpad=1.2, borderpad=1)
        unnamed = _bubbles(ax, points, [size(p.bytes) for p in points], baselines, style)
        return drawn(fig, "tradeoff"), unnamed


def state(
    points: Sequence[Point], baselines: dict[str, float], style: dict[str, Look]
) -> tuple[Drawing, list[str]]:
    """Accuracy against the bytes that decoding one sequence holds, logarithmic, as in Zoology; and
    which variants there was no room to name."""
    with figure(*size_for(points)) as fig:
        ax = fig.add_subplot()
        size_axis(ax, [p.x for p in points])
        ax.set_xlabel("decode state of one sequence, bytes")
        unnamed = _bubbles(ax, points, [9.0] * len(points), baselines, style)
        return drawn(fig, "decode-state"), unnamed


def _bubbles(
    ax,
    points: Sequence[Point],
    sizes: Sequence[float],
    baselines: dict[str, float],
    style: dict[str, Look],
) -> list[str]:
    """The points and the baselines that are near them, named; the x axis is set before. The names
    that found no room."""
    for p, ms in zip(points, sizes):
        look = style[p.name]
        fill = "full" if look.dash == "-" else "none"
        at = (p.x, p.accuracy)
        ax.plot(*at, "o", ms=ms, fillstyle=fill, color=look.colour, alpha=0.6, mew=1.5)
        if p.error is not None:
            ax.errorbar(*at, p.error, color=look.colour, lw=1, capsize=2.5)
    low, high = min(p.accuracy for p in points), max(p.accuracy for p in points)
    # from the accuracies, not the intervals: two seeds can give an interval of +-50
    span = max(high - low, 4.0)
    near = {name: x for name, x in baselines.items() if low - span < x < high + span}
    margin = 0.2 * (max([high, *near.values()]) - min([low, *near.values()])) + 1
    # what lies beyond 0 and 100 is room for bubbles and names
    bottom = max(min([low, *near.values()]) - margin, -BEYOND)
    top = min(max([high, *near.values()]) + margin, 100 + BEYOND)
    ax.set_ylim(bottom, top)
    inside = max(bottom, 0), min(top, 100)
    ax.set_yticks([y for y in ax.get_yticks() if inside[0] <= y <= inside[1]])
    ax.set_ylabel("test accuracy, %")
    for p in points:
        # an interval that goes on beyond the picture
        for end, marker in ((p.accuracy - (p.error or 0), "v"), (p.accuracy + (p.error or 0), "^")):
            if not bottom <= end <= top:
                at = (p.x, bottom if end < bottom else top)
                ax.plot(*at, marker, ms=6, color=style[p.name].colour, clip_on=False)
    for value in near.values():
        ax.axhline(value, color=INK, lw=0.8, ls=(0, (4, 3)), alpha=0.6)
    ax.figure.draw_without_rendering()
    radii = [ms / 2 for ms in sizes]
    bubbles, bars = _bubble_boxes(ax, points, radii), _bar_boxes(ax, points)
    bubbles += _label_lines(ax, near, bubbles + bars)
    return _label_points(ax, points, radii, style, bubbles, bars)


def _bubble_boxes(ax, points: Sequence[Point], radii: Sequence[float]) -> list[Box]:
    scale = ax.figure.dpi / 72
    centres = ax.transData.transform([(p.x, p.accuracy) for p in points])
    return [(*(c - r * scale), *(c + r * scale)) for c, r in zip(centres, radii)]


def _bar_boxes(ax, points: Sequence[Point]) -> list[Box]:
    boxes = []
    for point in points:
        reach = point.accuracy + (point.error or 0) * np.array([-1, 1])
        (x, low), (_, high) = ax.transData.transform([(point.x, y) for y in reach])
        boxes.append((x - 2, low, x + 2, high))
    return boxes


def _label_points(
    ax,
    points: Sequence[Point],
    radii: Sequence[float],
    style: dict[str, Look],
    bubbles: Sequence[Box],
    bars: Sequence[Box],
) -> list[str]:
    """A name beside each bubble, at the first of many places where it touches nothing, or bars
    alone; the names of those that have no such place. The first variant and those that none beats
    in both ways choose before the others."""
    scale, taken = ax.figure.dpi / 72, [*bubbles]
    renderer = ax.figure.canvas.get_renderer()
    centres = ax.transData.transform([(p.x, p.accuracy) for p in points])
    frame = ax.get_window_extent(renderer)
    angles = np.radians([0, 180, 90, 270, 45, 135, 225, 315, 22, 158, 202, 338])
    around = [(gap, np.array([math.cos(a), math.sin(a)])) for gap in GAPS for a in angles]
    unnamed = []
    for n in sorted(range(len(points)), key=lambda n: n > 0 and _beaten(points[n], points)):
        point, centre, radius = points[n], centres[n], radii[n]
        colour = style[point.name].colour
        text = ax.text(0, 0, point.name, fontsize=8.5, ha="center", va="center")
        extent = text.get_window_extent(renderer)
        half = np.array([extent.width, extent.height]) / 2 + 1
        places = [(gap, way, centre + way * ((radius + gap) * scale + half)) for gap, way in around]
        free = (
            p
            for all_of in (taken + [*bars], taken)
            for p in places
            if _free(p[2], half, frame, all_of)
        )
        if (found := next(free, None)) is None:
            text.remove()
            unnamed.append(point.name)
            continue
        gap, way, place = found
        taken.append((*(place - half), *(place + half)))
        if gap > GAPS[1]:
            edge = place - way / abs(way).max() * half  # not through the name
            ends = ax.transData.inverted().transform([centre, edge])
            ax.plot(*ends.T, color=colour, lw=0.6, zorder=1)
        text.set_position(ax.transData.inverted().transform(place))
    return unnamed


def _beaten(point: Point, points: Sequence[Point]) -> bool:
    """Whether another is both further to the right and more accurate."""
    return any(p.x > point.x and p.accuracy > point.accuracy for p in points)


GAPS = (2, 10, 20, 32, 46, 62)  # points between a bubble and its name; beyond the second, a line


def _free(place, half, frame, taken) -> bool:
    """Whether a box around `place` lies in the frame and touches none of the boxes taken."""
    (x0, y0), (x1, y1) = place - half, place + half
    inside = frame.x0 <= x0 and x1 <= frame.x1 and frame.y0 <= y0 and y1 <= frame.y1
    return inside and not _touches((x0, y0, x1, y1), taken)


def _touches(box: Box, taken: Sequence[Box]) -> bool:
    x0, y0, x1, y1 = box
    return any(x0 < b[2] and b[0] < x1 and y0 < b[3] and b[1] < y1 for b in taken)


def _label_lines(ax, baselines: dict[str, float], taken: Sequence[Box]) -> list[Box]:
    """Names on the baselines, as far to the right as they touch no bubble, pushed up where two
    would collide, or another's line would cross one out; the boxes around them."""
    boxes, least, last = [], 0.05 * np.ptp(ax.get_ylim()), -math.inf
    renderer = ax.figure.canvas.get_renderer()
    left = ax.get_window_extent(renderer).x0
    for name, value in sorted(baselines.items(), key=lambda item: item[1]):
        last = max(value + 0.1 * least, last + least)
        for line in sorted(baselines.values()):
            if last <= line < last + least:
                last = line + 0.1 * least
        word = f"{name} {value:.1f} (validation)"
        text = ax.text(1, last, word, ha="right", va="bottom", fontsize=7.5)
        text.set_transform(ax.get_yaxis_transform())  # x from 0 to 1, y an accuracy
        for end in (*np.linspace(1, 0.4, 25), 1):
            text.set_x(end)
            box = tuple(text.get_window_extent(renderer).extents)
            if box[0] >= left and not _touches(box, taken):
                break
        boxes.append(box)
    return boxes
