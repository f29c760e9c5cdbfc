"""FNet (Lee-Thorp et al. 2021, arXiv:2105.03824): mixing by a Fourier transform, no parameters."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn._axes import aligned
from attn._trigonometry import sin_cos
from attn._wide import wide
from attn.masks import Padding
from attn.nn.mixers.base import Mixer, MixerLayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class FNet(Mixer):
    """The real part of the discrete Fourier transform over sequence and width, unscaled, of each
    row without its padding: O(T W log(T W)), and O(T^2 W) with `Padding`, by matrices of each
    row's own length."""

    honours: ClassVar = (Padding,)

    def layer(self, width, *, dtype, key):
        return Fourier(self, width, dtype)

    @classmethod
    def examples(cls):
        return (cls(),)


class Fourier(MixerLayer):
    def mix(self, x, seen):
        y = jnp.fft.fft(wide(x), axis=-1)
        if seen.padding is None:
            return jnp.fft.fft(y, axis=-2).real.astype(self.dtype)
        there = seen.padding.seen_keys(x.shape[-2])
        angle = _angles(there, y.real.dtype)
        # the real part of (cos - i sin)(a + i b)
        sine, cosine = sin_cos(angle)
        y = cosine @ y.real + sine @ y.imag
        return jnp.where(*aligned(there[..., None], y), 0).astype(self.dtype)


def _angles(there: Bool[Array, "*B T"], dtype) -> Float[Array, "*B T T"]:
    """2 pi r s / n between the r-th and s-th of the n tokens that are there."""
    rank = jnp.cumsum(there, -1) - 1
    n = jnp.maximum(there.sum(-1), 1)[..., None, None]
    # in whole turns first, exactly: a float would lose the fraction of many turns
    turns = _product(rank[..., :, None], rank[..., None, :], n)
    return 2 * jnp.pi * turns.astype(dtype) / n.astype(dtype)


def _product(r: Int[Array, "*#L"], s: Int[Array, "*#L"], n: Int[Array, "*#L"]) -> Int[Array, "*#L"]:
    """r s modulo n for r and s below n, up to a million, in two parts that 32 bits hold."""
    return (r * (s // 1024) % n * 1024 + r * (s % 1024)) % n
