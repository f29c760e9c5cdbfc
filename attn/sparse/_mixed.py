"""Branches of attention mixed by gates, as NSA does."""

from jax import lax
from jaxtyping import Array, Float

from attn._core import isolate
from attn._wide import wide


def mixed(gate: Float[Array, "*B T N R"], *branches: Float[Array, "*B T N D"]) -> Array:
    """The sum of R branches, each weighted by its gate."""
    # what is not finite is added at the end: 0 * NaN would reach every gradient
    gate, gate_poison = isolate(wide(gate))
    clean, poison = zip(*map(isolate, branches), strict=True)
    out = sum(gate[..., n, None] * x for n, x in enumerate(clean))
    return out + lax.stop_gradient(sum(poison) + gate_poison)[..., None]
