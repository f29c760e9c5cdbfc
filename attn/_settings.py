"""Checks of the settings of records and functions: numbers, counts, flags and choices."""

import dataclasses
import numbers

import numpy as np


def is_number(x) -> bool:
    """Whether x is a real number of Python's or NumPy's that JAX computes with, which it does not
    with a Fraction; True and False are none."""
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


def is_integer(x) -> bool:
    """Whether x is an integer, likewise."""
    return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def is_hashable(x) -> bool:
    """Whether x can be hashed, as a record can whose fields are plain values."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def check_count(name: str, value, *, least: int = 1) -> None:
    """Raise ValueError unless `value` is an integer from `least` to 2^30."""
    if not is_integer(value) or not least <= value <= 2**30:
        raise ValueError(f"{name}: expected an integer from {least} to 2^30, got {value!r}")


def check_batch(batch) -> None:
    """Raise TypeError unless a state's `batch` is a tuple of sizes, numbers or symbols of
    `jax.export`."""
    size = lambda n: not is_number(n) or (is_integer(n) and n >= 0)
    if not (isinstance(batch, tuple | list) and all(map(size, batch))):
        raise TypeError(f"batch: expected a tuple of sizes, as (2,), got {batch!r}")


def check_room_for(batch, max_length, **sizes) -> None:
    """Raise what `check_batch` does, ValueError unless `max_length` and the other `sizes` are
    counts."""
    check_batch(batch)
    for name, value in {"max_length": max_length, **sizes}.items():
        check_count(name, value, least=0)


def check_cap(logit_cap: float | None) -> None:
    """Raise ValueError unless it is None or a positive number."""
    if logit_cap is not None and not (is_number(logit_cap) and 0 < logit_cap < 1e30):
        raise ValueError(f"logit_cap: expected a positive number or None, got {logit_cap!r}")


def check_flags(record) -> None:
    """Raise TypeError unless each field of a dataclass that is declared bool is one."""
    for field in dataclasses.fields(record):
        if field.type is bool:
            check_flag(field.name, getattr(record, field.name))


def check_flag(name: str, value) -> None:
    """Raise TypeError for anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, got {value!r}")


def check_choice(name: str, value, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_block(block: int | tuple[int, int] | None) -> None:
    """Raise ValueError unless `block` is None, a positive integer or two."""
    pair = isinstance(block, tuple) and len(block) == 2
    for size in block if pair else (block,) * (block is not None):
        check_count("block", size)
