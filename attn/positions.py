"""Positions as functions of indices: sinusoidal, on a grid, rotary, xPos, ALiBi, T5 buckets."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn._integers import apart
from attn._rotary import Rotary as Rotary
from attn._rotary import rotary as rotary
from attn._rotary import xpos_scale as xpos_scale
from attn._settings import check_count, check_flag, is_integer


def sinusoidal(length: int, width: int) -> Float[np.ndarray, "length width"]:
    """PE[t, 2c] = sin(t / 10000^(2c/width)), PE[t, 2c+1] = cos(same) (Vaswani et al. 2017,
    arXiv:1706.03762), float32. An odd width drops the last cosine. Raises ValueError for a width
    below 1 or a negative length."""
    check_count("length", length, least=0)
    check_count("width", width)
    rate = 10000.0 ** (-np.arange(0, width, 2) / width)
    angle = np.arange(length)[:, None] * rate  # [length, ceil(width / 2)], in float64
    table = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, 2 * rate.size)
    return table[:, :width].astype(np.float32)


def sinusoidal_grid(length: int, columns: int, width: int) -> Float[np.ndarray, "length width"]:
    """Sinusoids of an image read row by row: the first half of the channels for t // columns, the
    second for t % columns (as ViT's two-dimensional positions, Dosovitskiy et al. 2020,
    arXiv:2010.11929, but fixed). Raises ValueError for a width below 2, no columns or a negative
    length."""
    check_count("length", length, least=0)
    check_count("columns", columns)
    check_count("width", width, least=2)
    row, column = np.divmod(np.arange(length), columns)
    half = width // 2
    of_row = sinusoidal(length // columns + 1, half)[row]
    return np.concatenate([of_row, sinusoidal(columns, width - half)[column]], axis=-1)


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " num_heads"]:
    """2^(-8 n / N) for n = 1..N; for N not a power of two, the slopes of the power below, then
    every other one of the power above (Press et al. 2021, arXiv:2108.12409, and its code). Raises
    ValueError for no heads."""
    check_count("num_heads", num_heads)
    below = 2 ** int(math.log2(num_heads))
    geometric = lambda n: 2.0 ** (-8.0 / n * np.arange(1, n + 1))
    rest = geometric(2 * below)[::2][: num_heads - below]
    return np.concatenate([geometric(below), rest]).astype(np.float32)


def t5_bucket(
    i: Int[Array, "..."],
    j: Int[Array, "..."],
    *,
    num_buckets: int,
    max_distance: int,
    bidirectional: bool,
) -> Int[Array, "..."]:
    """The bucket of the distance j - i: exact up to half of a side's buckets, then logarithmic up
    to max_distance (Raffel et al. 2019, arXiv:1910.10683). With `bidirectional`, the upper half of
    the buckets is for keys after the query; without, those keys share bucket 0. Raises ValueError
    for fewer than 2 buckets a side, an odd number of them for two sides, and a `max_distance`
    within the exact distances, TypeError for i and j that are no integers."""
    check_flag("bidirectional", bidirectional)
    least = 4 if bidirectional else 2
    if not is_integer(num_buckets) or num_buckets < least or (bidirectional and num_buckets % 2):
        what = "an even number" if bidirectional else "a number"
        raise ValueError(f"num_buckets: expected {what} >= {least}, got {num_buckets!r}")
    distance = apart(i, j)
    buckets, upper = num_buckets, 0
    if bidirectional:
        buckets //= 2
        upper = jnp.where(distance < 0, buckets, 0)
        distance = jnp.abs(distance)
    exact = buckets // 2
    check_count("max_distance", max_distance, least=exact + 1)
    distance = jnp.maximum(distance, 0)
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact)
    far = exact + (ratio / math.log(max_distance / exact) * (buckets - exact)).astype(jnp.int32)
    return upper + jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))
