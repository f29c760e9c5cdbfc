"""Images of dashed curves with two dots (Houtkamp and Roelfsema 2010; Linsley et al. 2018).

A curve is a chain of dashes, each turned from the one before by a bounded random angle, and kept
clear of other curves. The places (x, y) of all that is drawn are in pixels, (0, 0) the middle of
the first pixel.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from experiments.tasks.pathfinder_canvas import Canvas, Geometry
from experiments.tasks.strokes import paint

FAINTEST = 0.6  # of a dash; drawn for each alone, so that it does not tell its curve
GEOMETRIES = {
    16: Geometry(16, dash=1.1, gap=0.6, width=0.7, dot=1.0, clear=2.0, short=8, cells=2),
    32: Geometry(32, dash=1.6, gap=0.9, width=0.7, dot=1.5, clear=2.2, short=20, cells=2),
    64: Geometry(64, dash=3.5, gap=1.5, width=1.0, dot=2.5, clear=3.5, short=22, cells=1),
    128: Geometry(128, dash=5.0, gap=2.5, width=1.5, dot=3.0, clear=6.0, short=35, cells=1),
}


class Images(NamedTuple):
    pixels: UInt8[np.ndarray, "B size size"]
    dots: Float[np.ndarray, "B 2 2"]
    curves: list[Float[np.ndarray, "B _ 2"]]  # their joints; the first two are the long ones
    drawn: Bool[np.ndarray, "B C"]  # a distractor for which no place was found is left out


def draw(random: np.random.Generator, pairs: int, geometry: Geometry, dashes: int) -> Images:
    """Images 2 i and 2 i + 1 are twins with the same two dots: on two long curves in the first, on
    one in the second, which has another long curve elsewhere. Twins have as many curves of the
    same lengths, and the same dash at each dot; either both are kept or neither, so nothing about
    the dots and little about the ink tells one from the other."""
    kept, have = [], 0
    while have < pairs:
        twins = _twins(random, 16 + 2 * (pairs - have), geometry, dashes)
        kept.append(twins)
        have += len(twins[0])
    # [pairs, 2, ...] -> [2 pairs, ...]
    parts = [np.concatenate(part)[:pairs] for part in zip(*kept, strict=True)]
    drawn, *curves = [part.reshape(2 * pairs, *part.shape[2:]) for part in parts]
    dots = curves[0][1::2][:, [0, -1]].repeat(2, 0)
    return Images(_painted(random, curves, drawn, dots, geometry), dots, curves, drawn)


def _twins(random: np.random.Generator, tries: int, geometry: Geometry, dashes: int) -> list:
    """Which curves are drawn [B, 2, C], and each curve [B, 2, L, 2], of some B <= tries pairs."""
    apart, together = Canvas(tries, geometry), Canvas(tries, geometry)

    def kept(good, *curves):
        apart.keep(good)
        together.keep(good)
        return [curve[good] for curve in curves]

    joining, found = together.anywhere(random, dashes)
    (joining,) = kept(found, joining)
    together.occupy(joining)
    together.occupy_dots(joining[:, 0], joining[:, -1])
    elsewhere, found = together.anywhere(random, dashes)
    joining, elsewhere = kept(found, joining, elsewhere)
    together.occupy(elsewhere)

    # A curve starts inside its own dot, from which the other one must keep away.
    apart.occupy_dots(joining[:, -1])
    one, found = apart.starting(random, dashes, joining[:, 0], joining[:, 1] - joining[:, 0])
    joining, elsewhere, one = kept(found, joining, elsewhere, one)
    apart.clear()
    apart.occupy(one)
    apart.occupy_dots(joining[:, 0])
    other, found = apart.starting(random, dashes, joining[:, -1], joining[:, -2] - joining[:, -1])
    joining, elsewhere, one, other = kept(found, joining, elsewhere, one, other)
    apart.occupy(other)
    apart.occupy_dots(joining[:, -1])

    curves, drawn = [(one, joining), (other, elsewhere)], [np.ones(len(one), bool)] * 2
    for _ in range(geometry.short // (dashes // 3)):
        pairs = [canvas.anywhere(random, dashes // 3) for canvas in (apart, together)]
        new, found = zip(*pairs, strict=True)
        both = found[0] & found[1]
        for canvas, curve in zip((apart, together), new, strict=True):
            canvas.occupy(curve, both)
        curves.append(new)
        drawn.append(both)
    return [np.stack(drawn, 1)[:, None].repeat(2, 1), *(np.stack(pair, 1) for pair in curves)]


def _painted(
    random: np.random.Generator,
    curves: list[Float[np.ndarray, "B _ 2"]],
    drawn: Bool[np.ndarray, "B C"],
    dots: Float[np.ndarray, "B 2 2"],
    geometry: Geometry,
) -> UInt8[np.ndarray, "B size size"]:
    dashes = np.concatenate([dashes_of(curve, geometry) for curve in curves], 1)
    shown = np.repeat(drawn, [curve.shape[1] - 1 for curve in curves], 1)
    images = np.zeros((len(dots), geometry.size, geometry.size))
    contrast = random.uniform(FAINTEST, 1, shown.shape)
    paint(images, dashes, geometry.width / 2, shown * contrast)
    paint(images, dots[:, :, None].repeat(2, 2), geometry.dot, np.ones(dots.shape[:2]))
    return np.rint(255 * images).astype(np.uint8)


def dashes_of(
    curve: Float[np.ndarray, "B L 2"], geometry: Geometry
) -> Float[np.ndarray, "B M 2 2"]:
    """Where the line of each dash starts and ends; its round ends stand over by half its width."""
    t = (geometry.gap + geometry.width) / 2 / geometry.period
    start, end = curve[:, :-1], curve[:, 1:]
    return np.stack([start + t * (end - start), end - t * (end - start)], 2)
