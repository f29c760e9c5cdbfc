"""What every part shares: the settings and the random inputs."""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`length`, `features` and `scale` are what a sweep over another of them holds fixed."""

    draws: int = 5
    steps: int = 300
    width: int = 64
    length: int = 256
    features: int = 256
    scale: float = 0.25
    scales: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    counts: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    fourier_counts: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    counted_scales: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)
    fitted_from: int = 256
    theory_rows: int = 64  # queries that theory's sums go over
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    windows: tuple[int, ...] = (0, 16, 64, 128, 192, 256)
    widths: tuple[int, ...] = (8, 16, 32, 64, 128)
    learned: tuple[int, ...] = (16, 64, 256)
    train_length: int = 128
    batch: int = 4
    rate: float = 0.01


class Inputs(NamedTuple):
    """One head; `cotangent` is what the output's gradient is taken against."""

    q: Float[Array, "T 1 H"]
    k: Float[Array, "T 1 H"]
    v: Float[Array, "T 1 H"]
    cotangent: Float[Array, "T 1 H"]


def draw(seed, length: int, width: int, scale, share: float = 0.5) -> Inputs:
    """Unit normal arrays with q times scale^share and k times scale^(1 - share), so that the
    logits q . k / sqrt(H) have the deviation `scale`, however it is shared."""
    keys = jax.random.split(jax.random.key(seed), 4)
    q, k, v, cotangent = (jax.random.normal(key, (length, 1, width)) for key in keys)
    return Inputs(q * scale**share, k * scale ** (1 - share), v, cotangent)
