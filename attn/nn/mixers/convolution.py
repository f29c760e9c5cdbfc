"""Convolutions over the tokens of a row, over all channels or each by itself."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._axes import aligned
from attn._settings import check_count
from attn._wide import wide
from attn.gates import Uniform
from attn.masks import Causal, Padding, Segments
from attn.nn.keys import fold
from attn.nn.mixers.base import Mixer, MixerLayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taps(Mixer):
    """`kernel` tokens, `dilation` apart."""

    honours: ClassVar = (Causal, Padding, Segments)
    kernel: int
    dilation: int = 1

    def __post_init__(self):
        check_count("kernel", self.kernel)
        check_count("dilation", self.dilation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv(Taps):
    """sum_j W_j x_{t - j dilation} over `kernel` taps (WaveNet, van den Oord et al. 2016,
    arXiv:1609.03499), O(T kernel W^2). Under `Causal` the taps reach back; without, they are
    centred, the odd one of an even kernel ahead. Hidden tokens and other documents count as 0."""

    kernel: int = 3

    def layer(self, width, *, dtype, key):
        return Mixed(self, width, dtype=dtype, key=key)

    @classmethod
    def examples(cls):
        return cls(), cls(kernel=4, dilation=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DepthwiseConv(Taps):
    """sum_j w_j x_{t - j dilation} in each channel by itself (Kaiser et al. 2017,
    arXiv:1706.03059), O(T kernel W); taps and what counts as 0 are those of `Conv`."""

    kernel: int = 7

    def layer(self, width, *, dtype, key):
        return EachChannel(self, width, dtype=dtype, key=key)

    @classmethod
    def examples(cls):
        return cls(), cls(kernel=2, dilation=3)


class Convolution(MixerLayer):
    """Taps of a row; a subclass sums them with its kernel."""

    def sum(self, taps: list[Float[Array, "*B T W"]]) -> Float[Array, "*B T W"]:
        raise NotImplementedError

    def mix(self, x, seen):
        taps, dilation = self.mixer.kernel, self.mixer.dilation
        ahead = 0 if seen.causal else taps // 2
        sides = [(0, 0)] * (x.ndim - 2)
        sides += [((taps - 1 - ahead) * dilation, ahead * dilation), (0, 0)]
        read = self._taps(jnp.pad(x, sides))
        if seen.segments is not None:
            same = [seen.same((j - ahead) * dilation)[..., None] for j in range(taps)]
            read = [jnp.where(*aligned(s, tap), 0) for s, tap in zip(same, read)]
        return self.sum(read)

    def empty(self, batch):
        before = (self.mixer.kernel - 1) * self.mixer.dilation
        return jnp.zeros((*batch, before, self.width), self.dtype)

    def advance(self, state, x):
        window = jnp.concatenate([state, x], -2)
        return window[..., x.shape[-2] :, :], self.sum(self._taps(window))

    def _taps(self, window: Float[Array, "*B L W"]) -> list[Float[Array, "*B T W"]]:
        taps, dilation = self.mixer.kernel, self.mixer.dilation
        T = window.shape[-2] - (taps - 1) * dilation
        starts = [(taps - 1 - j) * dilation for j in range(taps)]
        return [window[..., start : start + T, :] for start in starts]


class Mixed(Convolution):
    """Every channel into every other."""

    def __init__(self, mixer: Conv, width: int, *, dtype, key: Array):
        super().__init__(mixer, width, dtype)
        draw = jax.nn.initializers.lecun_normal()  # of kernel times width inputs
        shape = (mixer.kernel, width, width)
        self.kernel = nnx.Param(draw(fold(key, "kernel"), shape, jnp.float32))

    def sum(self, taps):
        kernel = self.kernel[...].astype(self.dtype)
        return jnp.concatenate(taps, -1) @ kernel.reshape(-1, kernel.shape[-1])


class EachChannel(Convolution):
    """Sums in float32; weights start uniform in +-1 / sqrt(kernel)."""

    def __init__(self, mixer: DepthwiseConv, width: int, *, dtype, key: Array):
        super().__init__(mixer, width, dtype)
        draw = Uniform(mixer.kernel**-0.5)
        self.kernel = nnx.Param(draw(fold(key, "kernel"), (mixer.kernel, width), jnp.float32))

    def sum(self, taps):
        kernel = self.kernel[...]
        terms = (jnp.multiply(*aligned(w, wide(tap))) for w, tap in zip(kernel, taps))
        return sum(terms).astype(self.dtype)
