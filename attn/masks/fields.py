"""What the fields of a mask may be: integers within bounds, and arrays that fit."""

import operator
from typing import Any

import numpy as np

LARGEST = 2**30  # sums of an index and a field stay within int32


def fits(name, x, batch, event):
    """x is [*batch, *event], its batch axes absent or 1 where they broadcast."""
    if x is None:
        return
    lead = x.shape[: x.ndim - len(event)]
    ok = x.ndim >= len(event) and x.shape[x.ndim - len(event) :] == event
    ok = ok and (not lead or len(lead) == len(batch))
    if not ok or any(a not in (1, b) for a, b in zip(lead, batch)):
        raise ValueError(f"{name}: expected shape {[*batch, *event]}, got {list(x.shape)}")


def natural(name: str, value: Any, least: int = 0) -> int:
    """An integer of any kind as a Python int. Raises TypeError or ValueError by name."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if not least <= number <= LARGEST:
        raise ValueError(f"{name}: expected an integer in {least}..{LARGEST}, got {number}")
    return number


def keep(mask, **least: int) -> None:
    """Makes these fields Python ints; raises unless each is at least the number given."""
    for name, value in least.items():
        object.__setattr__(mask, name, natural(name, getattr(mask, name), value))
