"""Additive biases on the scores, computed from indices: never T x S in memory unless given so.

A bias is a pytree with one method, `at(i, j) -> [*B, N, *broadcast(i, j)]`; its arrays are
differentiable. The blockwise engine evaluates it on the visited block only.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.positions import t5_bucket


class Bias:
    """A number added to the score of (query i, key j), per head."""

    def at(self, i: Int[Array, "..."], j: Int[Array, "..."]) -> Float[Array, "..."]:
        """The bias at integer indices that broadcast: [*B, N, *broadcast(i, j)]."""
        raise NotImplementedError(f"{type(self).__name__} must define at(i, j)")

    def check(self, batch: tuple[int, ...], N: int, T: int, S: int) -> None:
        """Raise ValueError unless it fits [*batch, N, T, S]."""
        raise NotImplementedError(f"{type(self).__name__} must define check")

    def array(self, T: int, S: int) -> Float[Array, "*B N T S"]:
        """The whole bias: O(T S) memory."""
        return self.at(jnp.arange(T)[:, None], jnp.arange(S)[None, :])


def _bias(cls):
    """Frozen dataclass and pytree; `metadata={"rank": r}` marks an array of r axes after B."""
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)
    data = [f.name for f in fields if "rank" in f.metadata]
    meta = [f.name for f in fields if "rank" not in f.metadata]
    return jax.tree_util.register_dataclass(cls, data, meta)


@_bias
class Alibi(Bias):
    """-slope_n |i - j| (Press et al. 2021, arXiv:2108.12409), symmetric for encoders."""

    slopes: Float[Array, " N"] = dataclasses.field(metadata={"rank": 1})

    def check(self, batch, N, T, S):
        if jnp.shape(self.slopes) != (N,):
            raise ValueError(f"Alibi.slopes: expected shape [{N}], got {jnp.shape(self.slopes)}")

    def at(self, i, j):
        slopes = self.slopes.reshape((-1,) + (1,) * max(jnp.ndim(i), jnp.ndim(j)))
        return -slopes * jnp.abs(i - j).astype(self.slopes.dtype)


@_bias
class Relative(Bias):
    """table[bucket(j - i), n]: T5's learned relative position (Raffel et al. 2019,
    arXiv:1910.10683)."""

    table: Float[Array, "buckets N"] = dataclasses.field(metadata={"rank": 2})
    max_distance: int = 128
    bidirectional: bool = True

    def check(self, batch, N, T, S):
        if jnp.ndim(self.table) != 2 or self.table.shape[1] != N:
            raise ValueError(f"Relative.table: expected [buckets, {N}], got {self.table.shape}")

    def at(self, i, j):
        bucket = t5_bucket(
            i,
            j,
            num_buckets=self.table.shape[0],
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(self.table[bucket], -1, 0)


@_bias
class ArrayBias(Bias):
    """Any array that broadcasts to [*B, N, T, S] (all axes present, 1 where it broadcasts)."""

    values: Float[Array, "*B N T S"] = dataclasses.field(metadata={"rank": 3})

    def check(self, batch, N, T, S):
        shape, want = jnp.shape(self.values), (*batch, N, T, S)
        if len(shape) != len(want) or any(a not in (1, b) for a, b in zip(shape, want)):
            raise ValueError(f"bias: expected a shape that broadcasts to {want}, got {shape}")

    def at(self, i, j):
        T, S = self.values.shape[-2:]
        # an axis of 1 broadcasts; past the end the mask hides what is read
        return self.values[..., jnp.minimum(i, T - 1), jnp.minimum(j, S - 1)]


def as_bias(bias) -> Bias | None:
    """A Bias from a Bias, an array or None. Raises TypeError on anything else."""
    if bias is None or isinstance(bias, Bias):
        return bias
    if not hasattr(bias, "dtype") or not jnp.issubdtype(bias.dtype, jnp.floating):
        raise TypeError(
            f"bias: expected a Bias or a float array, got {getattr(bias, 'dtype', bias)}"
        )
    return ArrayBias(bias)
