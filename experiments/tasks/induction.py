"""Induction heads (Olsson et al. 2022, arXiv:2209.11895): what followed this token before?"""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_int
from experiments.tasks.drawn import Drawn, full_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Induction(Drawn):
    """Tokens at random with a special one somewhere, and again at the end, where the token that
    followed it is asked for (Gu & Dao 2023, arXiv:2312.00752: 16 tokens, length 256). The special
    token is 1, others from 2 on."""

    stream: ClassVar[str] = "induction"
    vocab_size: int = 16
    length: int = 256

    def __post_init__(self):
        super().__post_init__()
        require_int("vocab_size", self.vocab_size, 4)
        require_int("length", self.length, 3)

    def baselines(self) -> dict[str, float]:
        return {"chance": 1 / (self.vocab_size - 2)}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        rows = np.arange(number.size)
        tokens = random.integers(2, self.vocab_size, size=(rows.size, self.length))
        at = random.integers(0, self.length - 2, size=rows.size)
        tokens[rows, at] = tokens[:, -1] = 1
        labels = np.zeros_like(tokens)
        labels[:, -1] = tokens[rows, at + 1]
        return full_rows(tokens, labels, labels > 0)
