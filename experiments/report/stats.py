"""What a few seeds and test rows say: means, intervals, differences that are more than noise."""

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

LEVEL = 0.05  # of all comparisons together
ROUNDING = 1e-9  # what differs by less is equal
LEAST = 1e-12  # p


def interval(values: Sequence[float], rows: float | None = None) -> tuple[float, float | None]:
    """(mean, half width of its 95% interval) over seeds; one value has none, nor have equal ones
    unless `rows` are known, out of which each is an accuracy: then the test's rows are a sample
    too, the same for all seeds, and of more seeds the interval grows no narrower than they allow.
    """
    mean = statistics.fmean(values)
    if (of_seeds := _of_seeds(values, rows)) is None:
        return mean, None
    return mean, _half(0.05, of_seeds, len(values), _of_rows([mean], rows))


def paired(a: Sequence[float], b: Sequence[float], rows: float | None = None) -> float | None:
    """p that the means of two variants' accuracies are equal, two-sided, paired by seed; None of
    fewer than two seeds. By Student's t, and of accuracies out of `rows` with the rows' own share,
    as if the two failed on rows of their own: those that fail on the same ones differ by less, so
    this errs to the side of a tie. Equal differences are no evidence where `rows` are not known.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    n = len(differences)
    if n < 2:
        return None
    if (of_seeds := _of_seeds(differences, rows)) is None:
        return 1.0
    far = abs(statistics.fmean(differences))
    of_rows = _of_rows([statistics.fmean(x) for x in (a, b)], rows)
    # where an interval of that level would end
    outside = lambda p: far - _half(p, of_seeds, n, of_rows)
    return brentq(outside, LEAST, 1, xtol=LEAST) if outside(LEAST) < 0 else LEAST


def _half(p: float, of_seeds: float, n: int, of_rows: float) -> float:
    """Half an interval that misses with a chance of p, from the standard errors of a mean over n
    seeds: Student's for them, the normal one for rows, as they are many."""
    return math.hypot(
        float(stdtrit(n - 1, 1 - p / 2)) * of_seeds, float(ndtri(1 - p / 2)) * of_rows
    )


def _of_seeds(values: Sequence[float], rows: float | None) -> float | None:
    """The standard error of a mean over seeds, which agree no better than to one row; None of one
    seed, and where they agree and no rows are known."""
    n = len(values)
    found = statistics.stdev(values) if n > 1 else 0.0
    if n < 2 or (rows is None and found <= ROUNDING):
        return None
    return max(found, 1 / rows if rows else 0) / math.sqrt(n)


def _of_rows(means: Sequence[float], rows: float | None) -> float:
    """The standard error that a sample of rows makes of a sum of accuracies."""
    return math.sqrt(sum(m * (1 - m) for m in means) / rows) if rows else 0.0


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Each p corrected for there being so many (Holm 1979): where one is below LEVEL, the chance
    that any such finding is false is below it too."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[name]))
        corrected[name] = least
    return corrected
