"""Files whose lines are a label and more columns, between tabs: read as they stand, and checked."""

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import DataError


def lines(
    path: Path, *, names: tuple[str, ...], labels: dict[str, int]
) -> Iterator[tuple[int, list[str]]]:
    """(label, the other columns) of each line; quotes mean nothing, nor does a byte order mark at
    the beginning. Raises DataError with the line that is not as expected."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _parse(line.removeprefix(BOM_UTF8 * (number == 1)), names, labels)
            except ValueError as error:
                raise DataError(f"{path}:{number}: {error}") from None


def _parse(line: bytes, names: tuple[str, ...], labels: dict[str, int]) -> tuple[int, list[str]]:
    again = "fetch the file again if it is half downloaded"
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, got byte 0x{line[error.start]:02x}; {again}") from None
    first, *others = columns = text.rstrip("\r\n").split("\t")
    if len(columns) != len(names):
        expected = f"expected {len(names)} columns ({', '.join(names)}) between tabs"
        raise ValueError(f"{expected}, got {len(columns)}; {again}")
    if first not in labels:
        raise ValueError(f"expected a label {' or '.join(labels)}, got {first[:20]!r}")
    # a last column that is cut off still looks like a column
    if not text.endswith("\n"):
        raise ValueError(f"expected a line end: cut off here; {again}, or end its last line")
    return labels[first], others
