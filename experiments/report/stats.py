"""What a few seeds say: means, intervals, and which differences are more than their noise."""

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtr, stdtrit

LEVEL = 0.05  # of all comparisons together


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """(mean, half width of the 95% interval by Student's t); one value has no interval."""
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2:
        return mean, None
    return mean, float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)


def paired(differences: Sequence[float]) -> float | None:
    """p of Student's paired t test that their mean is 0, two-sided; None of fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(n - 1, -abs(mean) / (spread / math.sqrt(n))))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Each p corrected for there being so many (Holm 1979): where one is below LEVEL, the chance
    that any such finding is false is below it too."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[name]))
        corrected[name] = least
    return corrected
