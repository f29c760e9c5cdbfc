"""Long Range Arena's own ListOps files, read line by line and checked."""

from pathlib import Path

import numpy as np

from experiments.errors import DataError
from experiments.tasks.listops_trees import CLOSE, IDS, OPEN, Examples, evaluate

NAMES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
ORIGIN = (
    "it is in folder listops-1000 of Long Range Arena's release, "
    "https://storage.googleapis.com/long-range-arena/lra_release.gz"
)
PARENTHESES = str.maketrans("()", "  ")


def path_of(data_dir: str, split: str) -> Path:
    path = Path(data_dir, NAMES[split])
    if not path.is_file():
        raise DataError(
            f"data_dir: expected the file {path}, which does not exist; {ORIGIN}. "
            "Leave data_dir empty to draw expressions by the same rule"
        )
    return path


def read(path: Path, *, count: int, min_length: int, max_length: int) -> Examples:
    """The file's `count` expressions. Raises DataError with the line that is not as expected."""
    tokens = np.zeros((count, max_length), np.uint8)
    lengths, labels = np.zeros((2, count), np.int32)
    row = -1
    # Bytes that are no text must end in an error that has a line number, so not here.
    with path.open(encoding="ascii", errors="replace") as lines:
        if next(lines, "").rstrip("\n") != "Source\tTarget":
            raise DataError(f"{path}:1: expected the header 'Source<tab>Target'; {ORIGIN}")
        for row, line in enumerate(lines):
            try:
                if row == count:
                    raise ValueError(f"expected {count} expressions, the file has more")
                ids, labels[row] = _parse(line, min_length, max_length)
            except ValueError as error:
                raise DataError(f"{path}:{row + 2}: {error}") from None
            lengths[row] = len(ids)
            tokens[row, : len(ids)] = ids
    if row + 1 != count:
        raise DataError(
            f"{path}:{row + 2}: expected {count} expressions, the file ends after {row + 1}; "
            "fetch it again if it is half downloaded, else set the split's size"
        )
    return Examples(tokens, lengths, labels)


def _parse(line: str, min_length: int, max_length: int) -> tuple[list[int], int]:
    if not line.endswith("\n"):
        raise ValueError("expected a line end: the file is cut off here")
    source, _, target = line.rstrip("\n").partition("\t")
    if len(target) != 1 or target not in "0123456789":
        raise ValueError(f"expected a label 0..9 after a tab, got {target[:20]!r}")
    try:
        ids = [IDS[word] for word in source.translate(PARENTHESES).split()]
    except KeyError as error:
        words = " ".join(list(IDS)[1:])
        raise ValueError(f"expected the words {words}, got {error.args[0][:20]!r}") from None
    if 0 in ids:
        raise ValueError("expected an expression, got padding")
    if not min_length < len(ids) < max_length:
        bounds = f"more than min_length={min_length} and fewer than max_length={max_length}"
        raise ValueError(f"expected {bounds} tokens, got {len(ids)}")
    words = np.array(ids)
    nesting = np.cumsum((words >= OPEN) * 1 - 2 * (words == CLOSE))
    if nesting[-1] != 0 or (nesting[:-1] <= 0).any():
        raise ValueError("expected one expression with its brackets closed")
    if ((words[:-1] >= OPEN) & (words[:-1] < CLOSE) & (words[1:] == CLOSE)).any():
        raise ValueError("expected arguments after each operator, got one without any")
    # a label that moved to another line would go unseen: a model just learns nothing from it
    if (value := evaluate(ids)) != int(target):
        raise ValueError(f"expected the expression's value {value} as its label, got {target}")
    return ids, int(target)
