"""How much each turn of a loop should do, by what turns cost on this call's platform."""

from attn._platform import platform

FILLS = 2**25  # float32 numbers


def loops_are_slow() -> bool:
    """Whether each turn of a loop costs more than its work, as launches do on a GPU."""
    return platform() == "gpu"


def held(numbers: int) -> int:
    """How many numbers the largest array of a turn may have: as many as stay in a CPU's cache, or
    what fills a GPU."""
    return max(numbers, FILLS) if loops_are_slow() else numbers
