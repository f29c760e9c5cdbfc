"""Whether a measured quantity grows with the length as was claimed."""

from collections.abc import Sequence

from experiments.report.powers import Fit, fit
from experiments.studies.complexity.claims import growth

TOLERANCE = 0.2  # of an exponent: at short lengths what does not grow is still seen


def beyond(formula: str, lengths: Sequence[float], values: Sequence[float]) -> Fit:
    """How values / formula grows, which is T^0 where the claim is right."""
    return fit(lengths, [v / growth(formula, T) for v, T in zip(values, lengths)])


def departs(formula: str, lengths: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the values grow otherwise than the formula, by more than T^TOLERANCE and by more than
    the interval of the fit."""
    p, error = beyond(formula, lengths, values)
    return abs(p) > max(TOLERANCE, error or 0)


def untold(formula: str, lengths: Sequence[float], values: Sequence[float]) -> bool:
    """Whether they may or may not: the interval has T^0 in it, and the fit is beyond TOLERANCE."""
    p, error = beyond(formula, lengths, values)
    return TOLERANCE < abs(p) <= (error or 0)
