"""Call: everything about one call of dot-product attention that decides what may run it."""

import dataclasses
from typing import Any, Protocol

import jax
from jaxtyping import Array, Float

from attn._dropout import Dropout
from attn._platform import platform
from attn.biases import Bias
from attn.masks import Mask


@dataclasses.dataclass(frozen=True)
class Call:
    """Checked arguments; q, k, v may be shapes (`jax.ShapeDtypeStruct`). The mask is sized."""

    q: Any
    k: Any
    v: Any
    mask: Mask
    bias: Bias | None
    scale: float | Array | None = None
    logit_cap: float | None = None
    dropout: Dropout | None = None
    return_lse: bool = False
    block: int | tuple[int, int] | None = None
    platform: str = dataclasses.field(default_factory=platform)


class Implementation(Protocol):
    """One way to run it."""

    def refusal(self, call: Call) -> str | None:
        """Why it cannot run this call, naming the argument and what would; None if it can."""

    def __call__(
        self, call: Call
    ) -> tuple[Float[jax.Array, "*B T N D"], Float[jax.Array, "*B T N"] | None]:
        """The output in q's dtype; and each row's log-sum-exp, float32, if `return_lse` asks."""
