"""Positions in another order, or some of them, as a hashable constant."""

import dataclasses

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Places:
    """The token at place n is the one at position array()[n]; kept as bytes, which hash at once."""

    data: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, at: Int[np.ndarray, " L"] | list[int]) -> "Places":
        return cls(np.asarray(at, np.int32).tobytes())

    def array(self) -> Int[np.ndarray, " L"]:
        return np.frombuffer(self.data, np.int32)

    def look_up(self, index, xp):
        """array()[index] by NumPy or jax.numpy, `xp`; past the end, the last position."""
        return xp.asarray(self.array())[xp.minimum(index, len(self) - 1)]

    def __len__(self) -> int:
        return len(self.data) // 4
