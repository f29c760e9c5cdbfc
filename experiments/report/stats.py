"""What a few seeds and test rows say: means, intervals, differences that are more than noise."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

LEVEL = 0.05  # of one task's comparisons together
ROUNDING = 1e-9  # what differs by less is equal
LEAST = 1e-12  # p


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """One seed's accuracy on a test whose rows are a sample, the same for all seeds."""

    accuracy: float
    answers: float | None = None  # that it is out of
    by_row: Float[np.ndarray, "R"] | None = None  # how far each row moves it

    @classmethod
    def of(cls, test: Mapping[str, Any]) -> Self:
        """What a run's result says of a split; those of earlier versions do not count answers, or
        not row by row."""
        accuracy, rows = test["accuracy"], test.get("by_row")
        if rows is None:
            return cls(accuracy, test.get("answers"))
        right, asked = (np.array(rows[x].split(), float) for x in ("right", "of"))
        moved = right - accuracy * asked
        answers = float(np.broadcast_to(asked, right.shape).sum())
        return cls(accuracy, answers, moved / answers)


def scored(accuracies: Mapping[int, float], answers: float) -> dict[int, Score]:
    """By seed, where no more is known than what each is out of."""
    return {seed: Score(x, answers) for seed, x in accuracies.items()}


def interval(scores: Sequence[Score]) -> tuple[float, float | None]:
    """(mean, half width of its 95% interval) over seeds; one has none, nor have equal ones whose
    answers nobody counted. Where they are counted the test's rows are a sample too, and of more
    seeds the interval grows no narrower than they allow.
    """
    values = [score.accuracy for score in scores]
    mean = statistics.fmean(values)
    if (of_seeds := _of_seeds(values, _answers(scores))) is None:
        return mean, None
    return mean, _half(0.05, of_seeds, len(values), _of_rows(scores))


def paired(a: Sequence[Score], b: Sequence[Score]) -> float | None:
    """p that the means of two variants' accuracies are equal, two-sided, paired by seed, and by row
    where those are known; None of fewer than two seeds. By Student's t, with the rows' own share.
    Equal differences are no evidence where nobody counted the answers.
    """
    differences = [y.accuracy - x.accuracy for x, y in zip(a, b, strict=True)]
    n = len(differences)
    if n < 2:
        return None
    if (of_seeds := _of_seeds(differences, _answers([*a, *b]))) is None:
        return 1.0
    far, of_rows = abs(statistics.fmean(differences)), _of_rows(a, b)
    # where an interval of that level would end
    outside = lambda p: far - _half(p, of_seeds, n, of_rows)
    return brentq(outside, LEAST, 1, xtol=LEAST) if outside(LEAST) < 0 else LEAST


def _half(p: float, of_seeds: float, n: int, of_rows: float) -> float:
    """Half an interval that misses with a chance of p, from the standard errors of a mean over n
    seeds: Student's for them, the normal one for rows, as they are many."""
    return math.hypot(
        float(stdtrit(n - 1, 1 - p / 2)) * of_seeds, float(ndtri(1 - p / 2)) * of_rows
    )


def _answers(scores: Sequence[Score]) -> float | None:
    """The fewest that an accuracy is out of; None where nobody counted them."""
    return min((score.answers for score in scores if score.answers), default=None)


def _of_seeds(values: Sequence[float], answers: float | None) -> float | None:
    """The standard error of a mean over seeds, which agree no better than to one answer; None of
    one seed, and where they agree and no answers are counted."""
    n = len(values)
    found = statistics.stdev(values) if n > 1 else 0.0
    if n < 2 or (answers is None and found <= ROUNDING):
        return None
    return max(found, 1 / answers if answers else 0) / math.sqrt(n)


def _of_rows(*sides: Sequence[Score]) -> float:
    """The standard error that a sample of rows makes of a side's mean over seeds, or of two sides'
    difference. Where rows are not known one by one, as if each answer were a row and two sides
    failed on rows of their own: those that fail on the same ones differ by less.
    """
    scores = [score for side in sides for score in side]
    rows = {None if score.by_row is None else len(score.by_row) for score in scores}
    if rows == {None} or len(rows) > 1:
        means = [statistics.fmean(score.accuracy for score in side) for side in sides]
        answers = _answers(scores)
        return math.sqrt(sum(m * (1 - m) for m in means) / answers) if answers else 0.0
    first, *second = (np.mean([score.by_row for score in side], 0) for side in sides)
    (R,) = rows
    return math.sqrt(R / max(R - 1, 1)) * float(np.linalg.norm(first - sum(second)))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Each p corrected for there being so many (Holm 1979): where one is below LEVEL, the chance
    that any such finding is false is below it too."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[name]))
        corrected[name] = least
    return corrected
