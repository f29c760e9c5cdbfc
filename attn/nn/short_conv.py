"""A causal depthwise convolution over the last few tokens of the same document."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._once import once
from attn._wide import wide
from attn.gates import Uniform
from attn.masks import Mask
from attn.nn.earlier import documents, latest, same, shown
from attn.nn.keys import fold


class ShortConv(nnx.Module):
    """silu(sum_{j < taps} w_j x_{t-j} + b) for each channel (Dao & Gu 2024, arXiv:2405.21060), with
    b only if `bias`.

    Tokens that `Padding` hides and tokens of other `Segments` count as 0, like those before the
    first. Weights [taps, channels], and b, start uniform in +-1 / sqrt(taps). Sums are float32, the
    output is in x's dtype. Raises NotImplementedError for a mask that holds arrays other than those
    two joined by `&`.
    """

    def __init__(self, channels: int, taps: int, *, bias: bool = False, key: Array):
        draw = Uniform(taps**-0.5)
        self.kernel = nnx.Param(draw(key, (taps, channels), jnp.float32))
        of_bias = lambda: draw(fold(key, "bias"), (channels,), jnp.float32)
        self.bias = nnx.Param(of_bias()) if bias else None

    def __call__(self, x: Float[Array, "*B T C"], mask: Mask) -> Float[Array, "*B T C"]:
        padding, segments = documents(mask, x, who="a short convolution", off="short_conv=0")
        y = shown(wide(x), padding)
        y, kernel = aligned(y, self.kernel[...].astype(y.dtype))
        T, taps = y.shape[-2], kernel.shape[-2]
        # not `back`: XLA's loops over what is rolled and then selected take twice as long on a CPU
        before = jnp.pad(y, [(0, 0)] * (y.ndim - 2) + [(taps - 1, 0), (0, 0)])

        def tap(j):
            y = before[..., taps - 1 - j : taps - 1 - j + T, :]
            if segments is None:
                return y
            own, y = aligned(same(j, T, segments)[..., None], y)
            return jnp.where(own, y, 0)

        y = sum(kernel[..., j, None, :] * tap(j) for j in range(taps))
        # q, k and v are read apart
        return once(jax.nn.silu(self._plus_bias(y))).astype(x.dtype)

    def last(self, x: Float[Array, "*B T C"]) -> Float[Array, "*B before C"]:
        """The last tokens of a prompt, which the next token needs; 0 before its first."""
        return latest(x, self.kernel.shape[0] - 1)

    def step(self, before: Float[Array, "*B before C"], x: Float[Array, "*B 1 C"]):
        """(the tokens that the next one needs, the output of this one)."""
        x = jnp.concatenate([before, x], -2)
        y = wide(x)
        y, kernel = aligned(y, self.kernel[...].astype(y.dtype)[::-1])
        y = (kernel * y).sum(-2, keepdims=True)
        return x[..., 1:, :], jax.nn.silu(self._plus_bias(y)).astype(x.dtype)

    def _plus_bias(self, y):
        return y if self.bias is None else jnp.add(*aligned(y, self.bias[...].astype(y.dtype)))
