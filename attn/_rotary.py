"""Rotary positions: which channels rotate at which rates, and how they are scaled."""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats, is_array
from attn._axes import aligned
from attn._settings import check_count, is_integer, is_number
from attn._wide import wide_dtype

SCALINGS = ("none", "linear", "ntk", "yarn")
XPOS_LENGTH, XPOS_GAMMA = 512.0, 0.4  # of the paper's code


def rotary(
    x: Float[Array, "*B T N H"],
    positions: Int[Array, "*#B T"],
    *,
    base: float = 10000.0,
    rates: Float[Any, " half"] | None = None,
    scale: float | Float[Array, "*#B T 1 half"] = 1.0,
) -> Float[Array, "*B T N H"]:
    """Rotate the pairs (x_c, x_{c + R/2}) by the angles positions rates_c, and multiply them by
    `scale` (Su et al. 2021, arXiv:2104.09864, half-split layout).

    `rates` [R/2] are base^(-2c/H) with R = H by default; with fewer, the channels from R on stay as
    they are. Angles in at least float32, the result in x's dtype. Raises ValueError if H is odd and
    there are no rates, for a base that is not above 0, for more rates than pairs, and for positions
    and a scale that do not fit, TypeError for x that is not of floats and for anything else that is
    no number or array.
    """
    check_floats(x=x)
    check_positions(positions, x.shape[:-2])
    if not _is_scalar(base) or (is_number(base) and base <= 0):
        raise ValueError(f"base: expected a number above 0, got {base!r}")
    if rates is None:
        if x.shape[-1] % 2:
            raise ValueError(f"x: rotary needs an even head width, got {x.shape[-1]}")
        rates = geometric(x.shape[-1], base)
    elif jnp.ndim(rates) != 1:
        raise ValueError(f"rates: expected one for each pair, [R/2], got {rates!r}")
    turned = 2 * len(rates)
    if turned > x.shape[-1]:
        raise ValueError(f"rates: expected at most {x.shape[-1] // 2}, got {len(rates)}")
    _check_scale(scale, [*x.shape[:-2], 1, len(rates)])
    x = jnp.asarray(x)
    wide = wide_dtype(x.dtype)
    positions, rates = positions.astype(wide), jnp.asarray(rates, wide)
    x, positions, rates = aligned(x, positions[..., None, None], rates)
    angle = positions * rates  # [*B, T, 1, R/2]
    if jnp.ndim(scale):
        _, scale = aligned(x, scale)
    cos, sin = (jnp.cos(angle) * scale).astype(wide), (jnp.sin(angle) * scale).astype(wide)
    a, b = jnp.split(x[..., :turned].astype(wide), 2, axis=-1)
    pairs = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)
    return jnp.concatenate([pairs, x[..., turned:]], -1)


def xpos_scale(
    positions: Int[Array, "*B T"], half: int, *, centre: float = 0.0
) -> Float[Array, "*B T 1 half"]:
    """zeta_c^((t - centre) / 512), zeta_c = (c / half + 0.4) / 1.4, for channel pairs c < half (Sun
    et al. 2022, arXiv:2212.10554, and its code). float32, so |t - centre| up to 35,000. Raises
    TypeError for positions that are not an array, ValueError for another `half` than a count and
    a centre that is no number."""
    if not is_array(positions):
        raise TypeError(f"positions: expected an array, got {type(positions).__name__}")
    check_count("half", half)
    if not _is_scalar(centre):
        raise ValueError(f"centre: expected a number, got {centre!r}")
    zeta = (np.arange(half) / half + XPOS_GAMMA) / (1 + XPOS_GAMMA)
    power = (positions.astype(jnp.float32) - centre) / XPOS_LENGTH
    return jnp.exp(jnp.multiply(*aligned(power[..., None, None], np.log(zeta).astype(np.float32))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions, and how they are stretched to sequences `factor` times as long.

    The first `fraction` of each head is rotated. `scaling` "linear" divides every rate by `factor`
    (Chen et al. 2023, arXiv:2306.15595); "ntk" multiplies `base` by factor^(R / (R - 2)), R the
    channels rotated; "yarn" divides the rates that turn less than `beta_slow` times within
    `original_length`, keeps those that turn more than `beta_fast` times, with a ramp over the
    channels between, and multiplies the rotated channels of q and of k by 0.1 ln(factor) + 1 (Peng
    et al. 2023, arXiv:2309.00071, and its code). Raises a ValueError that names every mistake.
    """

    base: float = 10000.0
    fraction: float = 1.0
    scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    factor: float = 1.0
    original_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self):
        if mistakes := _mistakes(self):
            raise ValueError("\n".join(mistakes))

    def width(self, head_dim: int) -> int:
        """R, how many channels of a head are rotated. Raises ValueError unless it is even, at least
        2, and more than 2 for "ntk"."""
        width, least = round(self.fraction * head_dim), 4 if self.scaling == "ntk" else 2
        if abs(width - self.fraction * head_dim) > 1e-6 or width % 2 or width < least:
            what = "more than one pair" if least > 2 else "pairs"
            raise ValueError(
                f"rotary turns {what}: expected an even number of channels >= {least}, got "
                f"{self.fraction} of {head_dim}"
            )
        return width

    def rates(self, head_dim: int) -> Float[np.ndarray, " half"]:
        """The angle per position of each pair, float32. Raises as `width`."""
        R = self.width(head_dim)
        if self.scaling == "ntk":
            return geometric(R, self.base * self.factor ** (R / (R - 2)))
        rates = geometric(R, self.base)
        if self.scaling == "yarn":
            rates = rates * (1 - self._ramp(R)) + rates / self.factor * self._ramp(R)
        elif self.scaling == "linear":
            rates = rates / self.factor
        return rates

    def _ramp(self, R: int) -> Float[np.ndarray, " half"]:
        """How much of each rate is divided: 0 for the fast ones, 1 for the slow ones."""
        # the channel that turns so many times within the original length
        channel = lambda turns: (
            R * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(self.base))
        )
        low = max(math.floor(channel(self.beta_fast)), 0)
        high = min(math.ceil(channel(self.beta_slow)), R - 1)
        return np.clip((np.arange(R // 2) - low) / max(high - low, 0.001), 0, 1)

    @property
    def temperature(self) -> float:
        """The factor on the rotated channels."""
        return 0.1 * math.log(self.factor) + 1 if self.scaling == "yarn" else 1.0

    def __call__(
        self,
        q: Float[Array, "*B T N H"],
        k: Float[Array, "*B T K H"],
        positions: Int[Array, "*#B T"],
        *,
        xpos_centre: float | None = None,
    ) -> tuple[Float[Array, "*B T N H"], Float[Array, "*B T K H"]]:
        """q and k, rotated; with `xpos_centre` also scaled by `xpos_scale` and by its inverse, so
        that scores fall with distance. For keys after the query they would grow: mask with
        `Causal`. Raises as `rotary`."""
        check_positions(positions, q.shape[:-2])
        rates = self.rates(q.shape[-1])
        scale = inverse = self.temperature
        if xpos_centre is not None:
            zeta = xpos_scale(positions, len(rates), centre=xpos_centre)
            scale, inverse = scale * zeta, inverse / zeta
        turn = lambda x, scale: rotary(x, positions, rates=rates, scale=scale)
        return turn(q, scale), turn(k, inverse)


def geometric(width: int, base: float) -> Float[np.ndarray, " half"]:
    """base^(-2c / width), in float64 unless `base` is a JAX array."""
    return base ** (-np.arange(0, width, 2) / width)


def check_positions(positions, tokens: tuple[int, ...]) -> None:
    """Raise unless they are an array [*#B, T] for `tokens`, [*B, T]."""
    if not is_array(positions):
        raise TypeError(f"positions: expected an array, got {type(positions).__name__}")
    got, want = list(positions.shape), list(tokens)
    if got[-1:] != want[-1:] or not _fits(got, want):
        raise ValueError(f"positions: expected a shape that broadcasts to {want}, got {got}")


def _is_scalar(x) -> bool:
    """Whether x is a finite number, or an array without axes."""
    return (is_number(x) and math.isfinite(x)) or (is_array(x) and x.shape == ())


def _check_scale(scale, want: list[int]) -> None:
    """Raise unless it is a finite number, or an array of a shape that broadcasts to `want`."""
    if not (_is_scalar(scale) or is_array(scale)):
        raise TypeError(f"scale: expected a finite number or an array, got {scale!r}")
    if not _fits(got := list(jnp.shape(scale)), want):
        raise ValueError(f"scale: expected a shape that broadcasts to {want}, got {got}")


def _fits(got: list[int], want: list[int]) -> bool:
    """Whether an array of the one shape broadcasts to the other."""
    return len(got) <= len(want) and all(n in (1, m) for n, m in zip(got[::-1], want[::-1]))


def _mistakes(r: Rotary) -> list[str]:
    number = lambda x: is_number(x) and x < 1e30
    whole = is_integer(r.original_length)
    stretched, yarn = r.scaling != "none", r.scaling == "yarn"
    betas = number(r.beta_fast) and number(r.beta_slow) and 0 < r.beta_slow < r.beta_fast
    rules = [
        ("base", number(r.base) and r.base > 1, "a number > 1"),
        ("fraction", number(r.fraction) and 0 < r.fraction <= 1, "a number in (0, 1]"),
        ("scaling", r.scaling in SCALINGS, f"one of {', '.join(SCALINGS)}"),
        ("factor", number(r.factor) and r.factor >= 1, "a number >= 1"),
        ("factor", stretched or r.factor == 1, "1 with scaling='none'"),
        (
            "original_length",
            whole and r.original_length >= 1 if yarn else r.original_length is None,
            "an integer >= 1 with scaling='yarn'" if yarn else "None but with scaling='yarn'",
        ),
        ("beta_fast", betas, f"a number above beta_slow={r.beta_slow}, both > 0"),
    ]
    return [f"{n}: expected {what}, got {getattr(r, n)!r}" for n, ok, what in rules if not ok]
