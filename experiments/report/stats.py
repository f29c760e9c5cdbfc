"""What a few seeds say: means, intervals, and which differences are more than their noise."""

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtr, stdtrit

LEVEL = 0.05  # of all comparisons together
ROUNDING = 1e-9  # what differs by less is equal


def deviation(values: Sequence[float], step: float | None) -> float | None:
    """The standard deviation over seeds, and at least `step`; None where seeds agree and no step
    is known.

    An accuracy is a count out of n rows: each of two counts is known to half a row, their
    difference to one. So seeds are never said to agree better than to one row, step = 1 / n. Two
    seeds agree to the row by chance in one comparison of twenty (94% of 270 rows), and a deviation
    of 0 would make of any such difference an infinite t.
    """
    found = statistics.stdev(values)
    if step is None:
        return found if found > ROUNDING else None
    return max(found, step)


def interval(values: Sequence[float], step: float | None = None) -> tuple[float, float | None]:
    """(mean, half width of the 95% interval by Student's t); one value has none, nor have equal
    ones unless `step`, the least by which they can differ, is known."""
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2 or (spread := deviation(values, step)) is None:
        return mean, None
    return mean, float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)


def paired(differences: Sequence[float], step: float | None = None) -> float | None:
    """p of Student's paired t test that their mean is 0, two-sided; None of fewer than two. Equal
    differences are no evidence unless `step`, the least by which they can differ, is known."""
    n = len(differences)
    if n < 2:
        return None
    if (spread := deviation(differences, step)) is None:
        return 1.0
    mean = statistics.fmean(differences)
    return float(2 * stdtr(n - 1, -abs(mean) / (spread / math.sqrt(n))))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Each p corrected for there being so many (Holm 1979): where one is below LEVEL, the chance
    that any such finding is false is below it too."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[name]))
        corrected[name] = least
    return corrected
