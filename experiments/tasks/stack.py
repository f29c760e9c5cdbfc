"""A stack: symbols are pushed, and asked for when they are popped."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_different, require_int
from experiments.tasks.drawn import Drawn, full_rows, whole_split

POP = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(Drawn):
    """Each token pushes a symbol or pops the last one that is left, which is asked for there (after
    the stack manipulation of Deletang et al. 2022, arXiv:2207.02098, who ask for all of the stack
    at the end). A row's stack is never deeper than its slice says; between empty and full, a push
    is as likely as a pop. A pop is 1, symbols from 2 on."""

    stream: ClassVar[str] = "stack"
    vocab_size: int = 10
    length: int = 40
    depths: tuple[int, ...] = (2, 4, 8)  # one slice each, mixed evenly

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, 4)
        require_int("length", self.length, 2)
        require_different("depths", self.depths, 1)

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(f"depth {depth}" for depth in self.depths)

    @property
    def asked(self) -> int:
        return self.length // 2

    def baselines(self) -> dict[str, float]:
        batch = whole_split(self, "validation")
        asked = batch.weights > 0
        # The last symbol that was seen, popped since or not.
        place = np.where(batch.tokens > POP, np.arange(self.length), 0)
        last = np.take_along_axis(batch.tokens, np.maximum.accumulate(place, 1), 1)
        right = (last == batch.labels)[asked].mean()
        return {"chance": 1 / (self.vocab_size - 2), "the last push": float(right)}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        rows, slices = np.arange(number.size), number % len(self.depths)
        deepest = np.array(self.depths)[slices]
        symbols = random.integers(2, self.vocab_size, size=(rows.size, self.length))
        coins = random.random((rows.size, self.length)) < 0.5
        tokens, labels = np.zeros((2, rows.size, self.length), np.int32)
        most = min(max(self.depths), self.length)
        stack, depth = np.zeros((rows.size, most + 1), np.int32), 0 * rows
        for t in range(self.length):
            pops = (depth > 0) & (coins[:, t] | (depth == deepest))
            tokens[:, t] = np.where(pops, POP, symbols[:, t])
            labels[:, t] = np.where(pops, stack[rows, depth], 0)
            depth = depth + np.where(pops, -1, 1)
            pushed = rows[~pops]
            stack[pushed, depth[pushed]] = symbols[pushed, t]
        batch = full_rows(tokens, labels, labels > 0)
        return dataclasses.replace(batch, slices=slices.astype(np.int32))
