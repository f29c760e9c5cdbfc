"""The decay between a key and a query, as a bias."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._axes import part_of, with_part
from attn._once import once
from attn._running import between
from attn.biases import Bias, array_field, term


@term
class Decay(Bias):
    """-|a_i - c_j|: the log decay between key j and query i, from running sums of logarithms (Lin
    et al. 2025, arXiv:2503.02130) as `_running.py` makes them."""

    queries: Float[Array, "*B T N 3"] = array_field(3)
    keys: Float[Array, "*B S N 3"] = array_field(3)

    def check(self, batch, N, T, S):
        for name, length in (("queries", T), ("keys", S)):
            got, want = jnp.shape(getattr(self, name)), (*batch, length, N, 3)
            if got != want:
                raise ValueError(f"Decay.{name}: expected {list(want)}, got {list(got)}")

    def at(self, i, j):
        i, j = jnp.broadcast_arrays(*(jnp.asarray(x) for x in (i, j)))
        read = lambda x, at: _heads_first(x)[..., jnp.minimum(at, x.shape[-3] - 1)]
        return between(read(self.queries, i), read(self.keys, j))

    def reordered(self, queries, keys):
        take = lambda x, at: jnp.take(x, at.array(), axis=-3)
        return Decay(take(self.queries, queries), take(self.keys, keys))

    def of_heads(self, heads):
        return jax.tree.map(lambda x: x[..., heads, :], self)

    def prepare(self, batch, T, S, block):
        pad = lambda x, length: jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0), (0, 0)))
        merged = self.merge_batch(batch)
        return Decay(pad(merged.queries, T), pad(merged.keys, S))

    def rows(self, start, count):
        return jax.tree.map(lambda x: part_of(x, start, count, 0), self)

    def with_rows(self, part, start):
        return jax.tree.map(lambda x, y: with_part(x, y, start, 0), self, part)

    def tile(self, i, j):
        return self._tile(*self._parts(self, i, j))

    def add_tile(self, total, d, i, j):
        _, pull = jax.vjp(self._tile, *self._parts(self, i, j))
        (a, c), (da, dc) = self._parts(total, i, j), pull(d)
        return Decay(
            with_part(total.queries, a + da, i[0, 0], 1), with_part(total.keys, c + dc, j[0, 0], 1)
        )

    @staticmethod
    def _parts(x, i, j):
        return part_of(x.queries, i[0, 0], i.size, 1), part_of(x.keys, j[0, 0], j.size, 1)

    @staticmethod
    def _tile(a, c):
        a, c = once(_heads_first(a)), once(_heads_first(c))
        return between(a[..., :, None], c[..., None, :])


def _heads_first(x: Float[Array, "*B S N 3"]) -> Float[Array, "3 *B N S"]:
    return jnp.moveaxis(jnp.swapaxes(x, -3, -2), -1, 0)
