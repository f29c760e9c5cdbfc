"""Token shift: what a projection reads is a mixture of a token and the one before it."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._core import wide
from attn.masks import Mask
from attn.nn.earlier import back, documents, latest, shown


class TokenShift(nnx.Module):
    """x_t + (x_{t-1} - x_t) mu for each named projection, with a share mu of its own for each
    channel (RWKV-7, Peng et al. 2025, arXiv:2503.14456).

    x_{t-1} is 0 before the first token of a document and where `Padding` hides it. Channel c of C
    starts with mu = 1 - (c / C)^power, the power by the projection's name, as in the first layer
    of the authors' training code (BlinkDL/RWKV-LM): from the token before alone to almost the token
    alone. Arithmetic is float32, the mixture in x's dtype.
    """

    def __init__(self, width: int, powers: dict[str, float]):
        c = jnp.arange(width, dtype=jnp.float32) / width
        self.mu = nnx.Dict({name: nnx.Param(1 - c**power) for name, power in powers.items()})

    def before(self, x: Float[Array, "*B T W"], mask: Mask) -> Float[Array, "*B T W"]:
        """The token before each. Raises NotImplementedError for a mask whose arrays say otherwise
        who may see whom."""
        padding, segments = documents(mask, x, who="a token shift", off="token_shift=False")
        return back(shown(x, padding), 1, segments)

    def last(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B 1 W"]:
        """What the token after a prompt has before it."""
        return latest(x, 1)

    def __call__(
        self, name: str, x: Float[Array, "*B T W"], before: Float[Array, "*B T W"]
    ) -> Float[Array, "*B T W"]:
        """What projection `name` reads: x itself if it is not shifted."""
        if name not in self.mu:
            return x
        y, before = wide(x), wide(before)
        y, before, mu = aligned(y, before, self.mu[name][...].astype(y.dtype))
        return (y + (before - y) * mu).astype(x.dtype)
