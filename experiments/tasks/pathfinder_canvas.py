"""Where in some images a curve may still go, and growing one there dash by dash."""

import dataclasses
import itertools

import numpy as np
from jaxtyping import Bool, Float

TURN = 0.8  # radians between two dashes, at most
STARTS = 8  # curves grown at once, of which one is kept
TURNS = 3  # tried for each dash


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Lengths in pixels, near those of Long Range Arena's files."""

    size: int
    dash: float
    gap: float
    width: float  # of a dash
    dot: float  # radius
    clear: float  # between the middles of two curves
    short: int  # dashes of all distractors together, at most
    cells: int  # of a map to a pixel

    @property
    def period(self) -> float:
        return self.dash + self.gap


class Canvas:
    """A map of each image."""

    def __init__(self, rows: int, geometry: Geometry):
        self.geometry = geometry
        # Past the image's edge, so that no place that is looked up or blocked lies outside.
        self.edge = int(geometry.period + geometry.clear + geometry.dot) + 2
        width = geometry.cells * (geometry.size + 2 * self.edge)
        self.taken = np.empty((rows, width, width), bool)
        self.clear()

    @property
    def rows(self) -> int:
        return len(self.taken)

    def keep(self, where: Bool[np.ndarray, "B"]) -> None:
        """These images alone."""
        self.taken = self.taken[where]

    def anywhere(
        self, random: np.random.Generator, dashes: int
    ) -> tuple[Float[np.ndarray, "B L 2"], Bool[np.ndarray, "B"]]:
        """A curve in each image, and where it could be grown. It is not on the map yet."""
        start = random.uniform(0, self.geometry.size - 1, (self.rows, STARTS, 2))
        heading = random.uniform(0, 2 * np.pi, (self.rows, STARTS))
        return self._grow(random, dashes, start, heading)

    def starting(
        self,
        random: np.random.Generator,
        dashes: int,
        start: Float[np.ndarray, "B 2"],
        towards: Float[np.ndarray, "B 2"],
    ) -> tuple[Float[np.ndarray, "B L 2"], Bool[np.ndarray, "B"]]:
        """As `anywhere`, from this place and with the first dash in this direction."""
        heading = np.arctan2(towards[:, 1], towards[:, 0])
        start, heading = start[:, None].repeat(STARTS, 1), heading[:, None].repeat(STARTS, 1)
        return self._grow(random, dashes, start, heading)

    def _grow(self, random, dashes, start, heading):
        curves, alive = start[:, :, None], self._free(start)
        for number in range(dashes):
            # The dead go on as copies of the living.
            order = np.argsort(~alive, axis=1, kind="stable")
            slots = np.arange(STARTS) % np.maximum(alive.sum(1), 1)[:, None]
            parent = np.take_along_axis(order, slots, 1)
            heading = np.take_along_axis(heading, parent, 1)
            curves = np.take_along_axis(curves, parent[..., None, None], 1)
            alive = alive.any(1)[:, None]
            turn = random.uniform(-TURN, TURN, (self.rows, STARTS, TURNS)) * (number > 0)
            angle = heading[..., None] + turn
            step = self.geometry.period * np.stack([np.cos(angle), np.sin(angle)], -1)
            last = curves[:, :, -1:]
            free = np.logical_and.reduce([self._free(last + t * step) for t in (1 / 3, 2 / 3, 1)])
            # of its own joints, but for the neighbours
            away = (last + step)[:, :, :, None] - curves[:, :, None, :-2]
            free &= (np.square(away).sum(-1) > self.geometry.clear**2).all(-1)
            alive = alive & free.any(-1)
            choice = free.argmax(-1)[..., None]
            heading = np.take_along_axis(angle, choice, -1)[..., 0]
            new = np.take_along_axis(last + step, choice[..., None], 2)
            # The dead stay where they are, for the map does not go on for ever.
            new = np.where(alive[..., None, None], new, last)
            curves = np.concatenate([curves, new], 2)
        return curves[np.arange(self.rows), alive.argmax(1)], alive.any(1)

    def occupy(
        self, curve: Float[np.ndarray, "B L 2"], where: Bool[np.ndarray, "B"] | bool = True
    ) -> None:
        between = [curve[:, :-1] + t * np.diff(curve, axis=1) for t in (0, 1 / 3, 2 / 3)]
        self._block(np.concatenate([*between, curve[:, -1:]], 1), self.geometry.clear, where)

    def occupy_dots(self, *places: Float[np.ndarray, "B 2"]) -> None:
        radius = self.geometry.clear + self.geometry.dot
        self._block(np.stack(places, 1), radius, True)

    def clear(self) -> None:
        self.taken[:] = True
        borders = self.geometry.dot, self.geometry.size - self.geometry.dot
        low, high = self._cells(np.array(borders))
        self.taken[:, low:high, low:high] = False

    def _block(self, places, radius, where) -> None:
        rows = np.flatnonzero(np.broadcast_to(where, self.rows))
        reach = self.geometry.cells * radius
        disc = itertools.product(range(-int(reach), int(reach) + 1), repeat=2)
        shifts = [y * self.taken.shape[1] + x for x, y in disc if np.hypot(x, y) <= reach]
        flat = self._flat(places[rows], rows)
        self.taken.reshape(-1)[flat[..., None] + np.array(shifts)] = True

    def _free(self, places: Float[np.ndarray, "B *P 2"]) -> Bool[np.ndarray, "B *P"]:
        return ~self.taken.reshape(-1)[self._flat(places, np.arange(self.rows))]

    def _flat(self, places, rows):
        cells, width = self._cells(places), self.taken.shape[1]
        rows = rows.reshape(-1, *[1] * (cells.ndim - 2))
        return (rows * width + cells[..., 1]) * width + cells[..., 0]

    def _cells(self, places):
        return np.rint(self.geometry.cells * (places + self.edge)).astype(np.intp)
