"""How a number of things is written."""


def plural(count: int | None, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
