"""State tracking: the sum so far, modulo a small number; modulo 2 it is parity."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from experiments.tasks.base import Batch, require_int
from experiments.tasks.drawn import Drawn, full_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modular(Drawn):
    """Digits below `modulus`, and at each the sum of all up to it, modulo that. Soft attention sees
    one digit's change ever less as rows grow (Hahn 2020, arXiv:1906.06755); a linear recurrence
    can, if it has negative eigenvalues (Grazzi et al. 2024, arXiv:2411.12537). Token d + 1 is the
    digit d."""

    stream: ClassVar[str] = "modular"
    modulus: int = 2
    length: int = 40

    def __post_init__(self):
        super().__post_init__()
        require_int("modulus", self.modulus, 2)
        require_int("length", self.length, 1)

    @property
    def vocab_size(self) -> int:
        return self.modulus + 1

    @property
    def classes(self) -> int:
        return self.modulus

    def baselines(self) -> dict[str, float]:
        others = (self.length - 1) / self.modulus
        return {"chance": 1 / self.modulus, "the last digit": (1 + others) / self.length}

    def draw(self, random: np.random.Generator, number: Int[np.ndarray, "B"]) -> Batch:
        digits = random.integers(0, self.modulus, size=(number.size, self.length))
        labels = np.cumsum(digits, 1) % self.modulus
        return full_rows(digits + 1, labels, np.ones_like(digits, bool))
