"""p of a power law T^p through points, and how far it is known."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


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


def power(lengths: Sequence[float], values: Sequence[float]) -> str:
    """`T^1.04 ± 0.02`; of two points without the interval."""
    p, error = fit(lengths, values)
    return f"T^{p:.2f}" + ("" if error is None else f" ± {error:.2f}")
