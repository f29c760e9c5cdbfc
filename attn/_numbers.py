"""What settings take for a number: Python's and NumPy's, True and False not among them."""

import numbers


def is_number(x) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def is_integer(x) -> bool:
    return isinstance(x, numbers.Integral) and not isinstance(x, bool)
