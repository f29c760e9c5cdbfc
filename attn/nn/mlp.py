"""The position-wise network of a block: W2 f(W1 x + b1) + b2 (Vaswani et al. 2017)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn.nn.keys import fold
from attn.nn.rows import of_rows


def gelu_exact(x: Float[Array, "*B W"]) -> Float[Array, "*B W"]:
    """x Phi(x) with the error function (Hendrycks & Gimpel 2016, arXiv:1606.08415), where "gelu"
    has their approximation by tanh."""
    return jax.nn.gelu(x, approximate=False)


def swiglu(x: Float[Array, "*B W"]) -> Float[Array, "*B W/2"]:
    """silu(a) b, where a and b are the halves of x (Shazeer 2020, arXiv:2002.05202)."""
    a, b = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(a) * b


# name: (numbers that go in for one that comes out, function)
ACTIVATIONS = {
    "gelu": (1, jax.nn.gelu),
    "gelu_exact": (1, gelu_exact),
    "relu": (1, jax.nn.relu),
    "silu": (1, jax.nn.silu),
    "swiglu": (2, swiglu),
}


class Mlp(nnx.Module):
    """Two linear maps; between them a function from `ACTIVATIONS` that gives `hidden` numbers."""

    def __init__(self, width: int, hidden: int, *, activation: str, dtype, key: Array):
        ratio, self.activation = ACTIVATIONS[activation]
        rngs = lambda name: nnx.Rngs(fold(key, name))
        self.up = nnx.Linear(width, ratio * hidden, dtype=dtype, rngs=rngs("up"))
        self.down = nnx.Linear(hidden, width, dtype=dtype, rngs=rngs("down"))

    def __call__(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B T W"]:
        return of_rows(lambda x: self.down(self.activation(self.up(x))), x)
