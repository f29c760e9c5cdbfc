"""How a measured quantity grows with the length, and whether that is what was claimed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from experiments.studies.complexity.claims import growth

TOLERANCE = 0.2  # of an exponent: at short lengths what does not grow is still seen


class Fit(NamedTuple):
    """p of T^p by least squares in logarithms, and half of its 95% interval (t, n - 2 degrees)."""

    exponent: float
    error: float | None


def fit(lengths: Sequence[float], values: Sequence[float]) -> Fit:
    x, y = np.log(lengths), np.log(values)
    x, y = x - x.mean(), y - y.mean()
    p = float(x @ y / (x @ x))
    free = len(x) - 2
    if free < 1:
        return Fit(p, None)
    residual = float(((y - p * x) ** 2).sum() / free / (x @ x))
    return Fit(p, float(stdtrit(free, 0.975)) * math.sqrt(residual))


def departs(formula: str, lengths: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the values grow otherwise than the formula, by more than T^TOLERANCE."""
    claimed = [growth(formula, T) for T in lengths]
    return abs(fit(lengths, [v / c for v, c in zip(values, claimed)]).exponent) > TOLERANCE
