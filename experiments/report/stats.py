"""What a few seeds say: the mean and its 95% interval by Student's t."""

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """(mean, half width of the 95% interval); one value has no interval."""
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2:
        return mean, None
    return mean, float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)
