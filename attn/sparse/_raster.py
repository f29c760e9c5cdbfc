"""Sides of squares: the rounded-up root of a length, and the sides of an image of S pixels."""

import math

from attn._settings import check_count


def root_up(n: int) -> int:
    """The least integer r >= 1 with r^2 >= n."""
    return math.isqrt(max(n - 1, 0)) + 1


def raster(height: int | None, width: int | None, S: int) -> tuple[int, int]:
    """(height, width) of an image of S pixels: as given, or of the least square that holds them."""
    side = root_up(S)
    return (side, side) if width is None else (height, width)


def check_raster(height: int | None, width: int | None) -> None:
    """Raise ValueError unless both are counts, or both None."""
    if (height is None) != (width is None):
        raise ValueError(f"height, width: expected both or neither, got {height} and {width}")
    if height is not None:
        check_count("height", height)
        check_count("width", width)
