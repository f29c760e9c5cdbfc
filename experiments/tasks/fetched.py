"""Tasks that are read whole from files that a user fetched."""

import abc
import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from experiments.tasks.base import Batch, Task, check_split, majority, require


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fetched(Task):
    """Rows with one label each, from the files in the folder data_dir."""

    head: ClassVar[str] = "classification"
    padded: ClassVar[bool] = True
    data_dir: str = ""

    def __post_init__(self):
        require(isinstance(self.data_dir, str), "data_dir", "a folder", self.data_dir)

    @abc.abstractmethod
    def labels(self, split: str) -> Int32[np.ndarray, "N"]:
        """Of every row of a split. Raises DataError for files that are missing or broken."""

    @abc.abstractmethod
    def tokens(
        self, split: str, indices: Int[np.ndarray, "B"]
    ) -> tuple[Int32[np.ndarray, "B *S T"], Int32[np.ndarray, "B *S"]]:
        """The tokens of these rows, and their lengths."""

    def size(self, split: str) -> int:
        check_split(split)
        return self.labels(split).size

    def examples(self, split: str, indices: Int[np.ndarray, "B"]) -> Batch:
        check_split(split)
        tokens, lengths = self.tokens(split, indices)
        return Batch(
            tokens=tokens,
            lengths=lengths,
            labels=self.labels(split)[indices],
            weights=np.ones(len(indices), np.float32),
            slices=np.zeros(len(indices), np.int32),
        )

    def baselines(self) -> dict[str, float]:
        return {
            "chance": 1 / self.classes,
            "majority class": majority(self.labels("validation")),
        }

    def definition(self) -> dict[str, int | float | str | tuple]:
        # Where files lie does not define the data; what they hold does.
        return {k: v for k, v in super().definition().items() if k != "data_dir"}
