"""ListOps of Long Range Arena (Tay et al. 2020): the value of a nested list of operators."""

import dataclasses
import functools
import hashlib
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import (
    MOST_DRAWN,
    Batch,
    Task,
    check_split,
    majority,
    require,
    require_int,
    rng,
)
from experiments.tasks.listops_files import NAMES, path_of, read
from experiments.tasks.listops_trees import VOCABULARY, Examples, draw, evaluate

BLOCK = 4096  # candidates drawn at a time
DRY_BLOCKS = 50  # this many without a new expression: there are hardly any more


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """Drawn by LRA's rule, or read from LRA's files if data_dir names their folder.

    The data set is fixed, as LRA's is: the seed of a batch orders it. Lengths count tokens
    without LRA's parentheses and lie strictly between the two bounds. No expression is drawn
    twice, neither within a split nor in two; what the files hold is taken as published.
    """

    head: ClassVar[str] = "classification"
    padded: ClassVar[bool] = True
    vocab_size: ClassVar[int] = len(VOCABULARY)
    classes: ClassVar[int] = 10
    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    train: int = 96_000
    validation: int = 2_000
    test: int = 2_000
    data_dir: str = ""

    def __post_init__(self):
        for name in ("train", "validation", "test"):
            require_int(name, getattr(self, name), 1, MOST_DRAWN)
        require_int("max_depth", self.max_depth, 1)
        require_int("min_length", self.min_length, 0)
        require_int("max_length", self.max_length, self.min_length + 2)
        require_int("max_args", self.max_args, 2)
        require(isinstance(self.data_dir, str), "data_dir", "a folder or ''", self.data_dir)
        longest, depth = 1, 1
        while depth < self.max_depth and longest <= self.min_length:
            longest, depth = 2 + self.max_args * longest, depth + 1
        expected = f"operators nested deep enough for more than min_length={self.min_length} tokens"
        require(longest > self.min_length, "max_depth", expected, self.max_depth)

    @property
    def length(self) -> int:
        return self.max_length

    def size(self, split: str) -> int:
        check_split(split)
        return getattr(self, split)

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        data = _data(self, split)
        return Batch(
            tokens=data.tokens[indices].astype(np.int32),
            lengths=data.lengths[indices],
            labels=data.labels[indices],
            weights=np.ones(len(indices), np.float32),
            slices=np.zeros(len(indices), np.int32),
        )

    def baselines(self) -> dict[str, float]:
        """The ladder: how far one gets by evaluating only the first levels of operators.

        "evaluate to depth d" computes the root from the digits and operators less than d levels
        below it and leaves deeper operators out as if they were not written; where nothing is
        left it answers as "root operator only" does, with the most frequent label of
        validation rows that start with the same word.
        """
        data = _data(self, "validation")
        first = data.tokens[:, 0]
        counts = np.zeros((self.vocab_size, self.classes), int)
        np.add.at(counts, (first, data.labels), 1)
        guess = counts.argmax(axis=1)[first]
        rungs = {
            "chance": 1 / self.classes,
            "majority class": majority(data.labels),
            "root operator only": float(np.mean(guess == data.labels)),
        }
        rows = [row[:n].tolist() for row, n in zip(data.tokens, data.lengths, strict=True)]
        for depth in (1, 2, 3):
            values = [evaluate(row, depth) for row in rows]
            answers = [g if v is None else v for v, g in zip(values, guess, strict=True)]
            rungs[f"evaluate to depth {depth}"] = float(np.mean(answers == data.labels))
        return rungs

    def definition(self) -> dict[str, int | float | str | tuple]:
        # Where files lie does not define the data; what they hold does.
        return {**super().definition(), "data_dir": bool(self.data_dir)}

    def content(self) -> bytes:
        if not self.data_dir:
            first = _block(self, "validation", 0)
            return first.tokens.tobytes() + first.labels.tobytes()
        parts = []
        for split in NAMES:
            with path_of(self.data_dir, split).open("rb") as file:
                parts.append(hashlib.file_digest(file, "sha256").digest())
        return b"".join(parts)


@functools.lru_cache(maxsize=3)  # one task's splits
def _data(task: ListOps, split: str) -> Examples:
    check_split(split)
    if task.data_dir:
        bounds = {"min_length": task.min_length, "max_length": task.max_length}
        return read(path_of(task.data_dir, split), count=task.size(split), **bounds)
    return _generate(task, split)


def _generate(task: ListOps, split: str) -> Examples:
    # Each split has its own stream and passes over what an earlier one holds.
    earlier = {"validation": [], "test": ["validation"], "train": ["validation", "test"]}[split]
    seen = {_digest(row) for name in earlier for row in _data(task, name).tokens}
    size = task.size(split)
    data = Examples(np.zeros((size, task.length), np.uint8), *np.zeros((2, size), np.int32))
    filled = number = last = 0
    while filled < size:
        block = _block(task, split, number)
        for row, digest in enumerate(map(_digest, block.tokens)):
            if digest not in seen and filled < size:
                seen.add(digest)
                for whole, part in zip(data, block, strict=True):
                    whole[filled] = part[row]
                filled, last = filled + 1, number
        number += 1
        expected = f"at most the {filled} different expressions found within the bounds"
        require(number - last <= DRY_BLOCKS, split, expected, size)
    return data


def _block(task: ListOps, split: str, number: int) -> Examples:
    return draw(
        rng("listops", split, number),
        BLOCK,
        min_length=task.min_length,
        max_length=task.max_length,
        max_depth=task.max_depth,
        max_args=task.max_args,
    )


def _digest(tokens: np.ndarray) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
