"""The average attention network (Zhang et al. 2018, arXiv:1805.00631) without its gate."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.linearized.linear import Linear
from attn.masks import Causal, Padding, Segments
from attn.nn.mixers.base import Mixer, MixerLayer

# features of equal queries and keys are equal, so every visible token weighs the same
MEAN = Linear()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(Mixer):
    """The mean of the visible tokens, that of the past under `Causal`; 0 where there is none.
    O(T W), in float32, no parameters."""

    honours: ClassVar = (Causal, Padding, Segments)

    def layer(self, width, *, dtype, key):
        return Mean(self, width, dtype)

    @classmethod
    def examples(cls):
        return (cls(),)


class Mean(MixerLayer):
    def mix(self, x, seen):
        return MEAN(*_alike(x), mask=seen.mask)[..., 0, :]

    def empty(self, batch):
        sizes = dict(num_heads=1, num_kv_heads=1, head_dim=1, value_dim=self.width)
        return MEAN.init_state(batch, **sizes, max_length=1, dtype=self.dtype)

    def advance(self, state, x):
        state, y = MEAN.step(state, *_alike(x))
        return state, y[..., 0, :]


def _alike(x: Float[Array, "*B T W"]) -> tuple[Float[Array, "*B T 1 H"], ...]:
    """Queries and keys that are all alike, and the values x, of one head."""
    alike = jnp.zeros((*x.shape[:-1], 1, 1), x.dtype)
    return alike, alike, x[..., None, :]
