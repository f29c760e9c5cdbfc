"""Whether a measured quantity grows with the length as was claimed."""

from collections.abc import Sequence

from experiments.report.powers import Fit, fit
from experiments.studies.complexity.claims import growths

TOLERANCE = 0.2  # of an exponent: at short lengths what does not grow is still seen


def beyond(formula: str, lengths: Sequence[float], values: Sequence[float]) -> list[Fit]:
    """How values / term grows for each term of the formula, which is T^0 where a claim without a
    sum is right."""
    terms = zip(*(growths(formula, T) for T in lengths))
    return [fit(lengths, [v / x for v, x in zip(values, term)]) for term in terms]


def departs(formula: str, lengths: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the values grow faster than each term of the formula, or slower than each, by more
    than T^TOLERANCE and by more than the interval of the fit."""
    found = beyond(formula, lengths, values)
    far = lambda sign: all(sign * p > max(TOLERANCE, error or 0) for p, error in found)
    return far(1) or far(-1)


def untold(formula: str, lengths: Sequence[float], values: Sequence[float]) -> bool:
    """Whether they may or may not: the interval has T^0 in it, and the fit is beyond TOLERANCE."""
    found = beyond(formula, lengths, values)
    far = lambda sign: all(sign * p > TOLERANCE for p, _ in found)
    return (far(1) or far(-1)) and not departs(formula, lengths, values)
