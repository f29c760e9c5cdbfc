"""Positions in another order, or some of them, as a hashable constant."""

import dataclasses

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Places:
    """The token at place n is the one at position at[n]."""

    at: tuple[int, ...]

    @classmethod
    def of(cls, at: Int[np.ndarray, " L"]) -> "Places":
        return cls(tuple(np.asarray(at).tolist()))

    def array(self) -> Int[np.ndarray, " L"]:
        return np.asarray(self.at, np.int32)
