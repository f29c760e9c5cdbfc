"""Additive biases on the scores, computed from indices: T x S in memory only if given as an array.

A bias is a pytree with one method, `at(i, j) -> [*B, N, *broadcast(i, j)]`; its arrays are
differentiable. The blockwise engine evaluates it on the visited block only.
"""

import dataclasses
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from attn._arrays import is_floats
from attn._axes import part_of, with_part
from attn._integers import apart
from attn._places import Places
from attn.masks.record import FIELDS, Record, check_frozen, frozen
from attn.masks.record import array_field as array_field
from attn.positions import t5_bucket


class Bias(Record):
    """A number added to the score of (query i, key j), per head.

    To write your own, put `term` on a class with fields and `at`, its arrays by `array_field`:

        @attn.biases.term
        class Distance(attn.Bias):
            slope: Float[Array, ""] = attn.biases.array_field(0)

            def at(self, i, j):
                return -self.slope * jnp.log1p(jnp.abs(i - j))[None]
    """

    def at(self, i: Int[Any, "..."], j: Int[Any, "..."]) -> Float[Array, "..."]:
        """The bias at integer indices that broadcast: [*B, N, *broadcast(i, j)], with 1 for N where
        all heads share it."""
        raise NotImplementedError(f"{type(self).__name__} must define at(i, j)")

    def check(self, batch: tuple[int, ...], N: int, T: int, S: int) -> None:
        """Raise ValueError unless it fits [*batch, N, T, S]. (This one: without batch axes.)"""
        index = np.zeros((1, 1), np.int32)
        got = jax.eval_shape(lambda: self.at(jnp.asarray(index), jnp.asarray(index))).shape
        if got not in ((N, 1, 1), (1, 1, 1)):
            raise ValueError(
                f"bias: expected {type(self).__name__}.at to give {[N, 1, 1]} or [1, 1, 1] for one "
                f"query and key, as [heads, *broadcast(i, j)], got {list(got)}"
            )

    def array(self, T: int, S: int) -> Float[Array, "*B N T S"]:
        """The whole bias: O(T S) memory."""
        return self.at(jnp.arange(T)[:, None], jnp.arange(S)[None, :])

    def reordered(self, queries: Places, keys: Places) -> "Bias":
        """The bias of tokens in another order: (i, j) is (queries[i], keys[j]) of this one."""
        return Reordered(self, queries, keys)

    def of_heads(self, heads: Int[np.ndarray, " n"]) -> "Bias":
        """The bias of some of the heads."""
        return OfHeads(self, Places.of(heads))

    # what the blockwise engine calls, with defaults for a bias without batch axes:

    def prepare(self, batch: tuple[int, ...], T: int, S: int, block: tuple[int, int]) -> "Bias":
        """The bias to be read by tiles of at most `block`: batch axes merged into one, of size 1 or
        the whole batch; lengths padded to T and S."""
        return self

    def rows(self, start, count: int) -> "Bias":
        """The bias of `count` batch rows from `start`."""
        return self

    def with_rows(self, part: "Bias", start) -> "Bias":
        """This bias with the rows from `start` replaced by `part`."""
        return part

    def tile(self, i: Int[Any, "b 1"], j: Int[Any, "1 c"]) -> Float[Array, "#R #N b c"]:
        """The bias of consecutive queries i and keys j."""
        x = self.at(i, j)
        return jnp.broadcast_to(x, (x.shape[0], i.size, j.size))[None]

    def add_tile(self, total: "Bias", d: Float[Array, "R N b c"], i, j) -> "Bias":
        """`total` (a gradient of this bias) plus what the gradient d of a tile adds."""
        of_heads = lambda bias: jnp.broadcast_to(bias.at(i, j), d.shape[1:]).astype(d.dtype)
        _, pull = jax.vjp(of_heads, self)
        return jax.tree.map(jnp.add, total, pull(d.sum(0))[0])


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=FIELDS)
def term(cls: type[Bias]) -> type[Bias]:
    """Make a Bias class a frozen dataclass and pytree; its arrays, of floats, are fields by
    `array_field`. Raises TypeError for anything but a subclass of Bias."""
    if not (isinstance(cls, type) and issubclass(cls, Bias)):
        raise TypeError(f"term: expected a subclass of Bias, got {cls!r}")
    return frozen(cls)


@term
class Alibi(Bias):
    """-slope_n |i - j| (Press et al. 2021, arXiv:2108.12409), symmetric for encoders.

    Distances count from i, whatever the offset of a `Causal` mask: for the last T of S queries,
    pass the rows `alibi.array(S, S)[None, :, -T:]`.
    """

    slopes: Float[Array, " N"] = array_field(1)

    def check(self, batch, N, T, S):
        if jnp.shape(self.slopes) != (N,):
            raise ValueError(f"Alibi.slopes: expected shape [{N}], got {jnp.shape(self.slopes)}")

    def at(self, i, j):
        slopes = self.slopes.reshape((-1,) + (1,) * max(jnp.ndim(i), jnp.ndim(j)))
        return -slopes * jnp.abs(apart(i, j))[None].astype(self.slopes.dtype)

    def of_heads(self, heads):
        return Alibi(self.slopes[heads])


@term
class Relative(Bias):
    """table[bucket(j - i), n]: T5's learned relative position (Raffel et al. 2019,
    arXiv:1910.10683). Counted from i, whatever the offset of a `Causal` mask."""

    table: Float[Array, "buckets N"] = array_field(2)
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

    def of_heads(self, heads):
        return dataclasses.replace(self, table=self.table[:, heads])

    def prepare(self, batch, T, S, block):
        # all distances that differ, computed once for the rows of a block: each tile is a slice
        near = min(self.max_distance, max(T, S)) + sum(block)  # no other distance occurs
        vector = self.at(near - jnp.arange(2 * near), jnp.zeros(2 * near, jnp.int32))
        return Strip(_strip(vector, block[0])[None], near)


@term
class Strip(Bias):
    """A bias that depends on i - j alone and is constant from a distance of `near` on, for the rows
    of one block: what `Relative` becomes in the blockwise engine."""

    values: Float[Array, "1 N b X"] = array_field(3)
    near: int = 0

    def tile(self, i, j):
        return lax.dynamic_slice_in_dim(self.values, self._start(i, j), j.size, 3)

    def add_tile(self, total, d, i, j):
        start = self._start(i, j)
        old = lax.dynamic_slice_in_dim(total.values, start, j.size, 3)
        new = old + d.sum(0)[None].astype(old.dtype)
        return Strip(lax.dynamic_update_slice_in_dim(total.values, new, start, 3), self.near)

    def _start(self, i, j):
        _, _, rows, X = self.values.shape
        return jnp.clip(self.near - rows + 1 + j[0, 0] - i[0, 0], 0, X - j.size)


def _strip(x: Float[Array, "N X"], rows: int) -> Float[Array, "N rows X-rows"]:
    """out[n, r, m] = x[n, rows - 1 + m - r]: rows of X read X - 1 apart."""
    N, X = x.shape
    flat = jnp.broadcast_to(x[:, None], (N, rows, X)).reshape(N, rows * X)
    flat = flat[:, rows - 1 : rows - 1 + rows * (X - 1)]
    return flat.reshape(N, rows, X - 1)[..., : X - rows]


@term
class Reordered(Bias):
    """`bias` for tokens in another order."""

    bias: Bias = array_field(0)
    queries: Places
    keys: Places

    def at(self, i, j):
        return self.bias.at(self.queries.look_up(i, jnp), self.keys.look_up(j, jnp))


@term
class OfHeads(Bias):
    """Some of the heads of `bias`."""

    bias: Bias = array_field(0)
    heads: Places

    def at(self, i, j):
        x = self.bias.at(i, j)
        return x if x.shape[0] == 1 else x[self.heads.array()]


@term
class ArrayBias(Bias):
    """Any array that broadcasts to [*B, N, T, S] (all axes present, 1 where it broadcasts)."""

    values: Float[Array, "*B N T S"] = array_field(3)

    def check(self, batch, N, T, S):
        shape, want = jnp.shape(self.values), (*batch, N, T, S)
        if len(shape) != len(want) or any(a not in (1, b) for a, b in zip(shape, want)):
            raise ValueError(f"bias: expected all axes of {want}, each whole or 1, got {shape}")

    def at(self, i, j):
        T, S = self.values.shape[-2:]
        # an axis of 1 broadcasts; past the end the mask hides what is read
        return self.values[..., jnp.minimum(i, T - 1), jnp.minimum(j, S - 1)]

    def reordered(self, queries, keys):
        x = self.values
        x = x if x.shape[-2] == 1 else jnp.take(x, queries.array(), axis=-2)
        return ArrayBias(x if x.shape[-1] == 1 else jnp.take(x, keys.array(), axis=-1))

    def of_heads(self, heads):
        x = self.values
        return self if x.shape[-3] == 1 else ArrayBias(jnp.take(x, heads, axis=-3))

    def prepare(self, batch, T, S, block):
        x = self.merge_batch(batch).values
        more = [0 if size == 1 else want - size for size, want in zip(x.shape[-2:], (T, S))]
        return ArrayBias(jnp.pad(x, ((0, 0), (0, 0), (0, more[0]), (0, more[1]))))

    def rows(self, start, count):
        return ArrayBias(part_of(self.values, start, count, 0))

    def with_rows(self, part, start):
        return ArrayBias(with_part(self.values, part.values, start, 0))

    def tile(self, i, j):
        x = part_of(part_of(self.values, i[0, 0], i.size, 2), j[0, 0], j.size, 3)
        return jnp.broadcast_to(x, (*x.shape[:2], i.size, j.size))

    def add_tile(self, total, d, i, j):
        old = part_of(part_of(total.values, i[0, 0], i.size, 2), j[0, 0], j.size, 3)
        axes = tuple(x for x in range(4) if old.shape[x] == 1 and d.shape[x] != 1)
        new = old + d.sum(axes, keepdims=True).astype(old.dtype)
        start = [0 if size == 1 else x[0, 0] for size, x in zip(total.values.shape[2:], (i, j))]
        start = [jnp.asarray(x, jnp.int32) for x in (0, 0, *start)]
        return ArrayBias(lax.dynamic_update_slice(total.values, new, start))


def as_bias(bias) -> Bias | None:
    """A Bias from a Bias, an array or None. Raises TypeError on anything else."""
    if isinstance(bias, Bias):
        check_frozen("bias", bias, "biases.term")
        for x in jax.tree.leaves(bias):
            if not is_floats(x):
                held, kind = getattr(x, "dtype", type(x).__name__), type(bias).__name__
                raise TypeError(f"bias: expected arrays of floats in {kind}, got {held}")
        return bias
    if bias is None:
        return None
    if not is_floats(bias):
        raise TypeError(
            f"bias: expected a Bias or a float array, got {getattr(bias, 'dtype', bias)}"
        )
    return ArrayBias(bias)
