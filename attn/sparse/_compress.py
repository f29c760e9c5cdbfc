"""NSA's compressed keys and values: one of each per run of l tokens, a stride apart."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn import _cache
from attn._core import isolate
from attn._wide import wide
from attn.sparse._select import Blocks, narrow


@functools.partial(jax.jit, static_argnums=1)  # for calls outside of jit
def compress(
    x: Float[Array, "M S W"], stride: int, position, up, down
) -> tuple[Float[Array, "M runs W"], Float[Array, "M runs"]]:
    """gelu((x + position) up) down of each run of l tokens, one every `stride`, and the poison of
    those that overflow; the arrays are per key head, x is [batch rows x key heads, S, W]."""
    (K, length, W), (M, S, _) = position.shape, x.shape
    runs = run_count(S, length, stride)
    if M == 0 or runs == 0:
        return jnp.zeros((M, runs, W), x.dtype), jnp.zeros((M, runs), x.dtype)
    # a run is length / stride steps, each shared with the runs before it
    steps = x[:, : S // stride * stride].reshape(M // K, K, S // stride, stride, W)
    cut = lambda y, n: y[:, n * stride : (n + 1) * stride]
    hidden = jnp.einsum("klw,klwe->ke", position, up)[None, :, None]
    for n in range(length // stride):
        hidden = hidden + jnp.einsum("bkrlw,klwe->bkre", steps[:, :, n : n + runs], cut(up, n))
    hidden, over = isolate(hidden)
    made, poison = isolate(jnp.einsum("bkre,kew->bkrw", _gelu(hidden), down))
    return made.reshape(M, runs, W), (over + poison).reshape(M, runs)


def _gelu(x):
    """jax.nn.gelu, whose own gradient is NaN where x^2 overflows."""
    near = jnp.abs(x) < 30  # beyond, the factor of x is 0 or 1 in any dtype
    return jnp.where(near, jax.nn.gelu(jnp.where(near, x, 0)), jax.nn.relu(x))


def run_count(S: int, length: int, stride: int) -> int:
    """How many runs lie within S tokens."""
    return max(0, (S - length) // stride + 1)


def maps(arrays: dict[str, Array], name: str, dtype) -> list[Array]:
    """(position, up, down) of the keys or of the values."""
    return [arrays[f"{name}_{x}"].astype(dtype) for x in ("position", "up", "down")]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Runs:
    """The compressed runs; batch rows and key heads are one axis M, as in `Blocks`. `poison` is NaN
    if a token was not finite, `ends` the last token (-1 if any is hidden), `ranked` the keys by
    which blocks are selected, float32 and without gradient."""

    k: Float[Array, "M runs H"]
    v: Float[Array, "M runs D"]
    poison: Float[Array, "M runs"]
    ends: Int[Array, "#M runs"]
    ranked: Float[Array, "M runs H"]

    @classmethod
    def of(cls, blocks: Blocks, S: int, stride: int, arrays: dict[str, Array]) -> "Runs":
        """The runs of the first S tokens of the blocks."""
        flat = lambda x: x.reshape(len(x), math.prod(x.shape[1:3]), *x.shape[3:])[:, :S]
        k, v, hidden, poison = map(flat, (blocks.k, blocks.v, ~blocks.seen, blocks.poison))
        of_keys = maps(arrays, "key", k.dtype)
        ck, k_over = compress(k, stride, *of_keys)
        cv, v_over = compress(v, stride, *maps(arrays, "value", v.dtype))
        fine = ck.dtype == jnp.float32
        ranked = ck if fine else compress(*narrow(k), stride, *narrow(*of_keys))[0]
        length, start = of_keys[0].shape[1], jnp.arange(ck.shape[1]) * stride
        tokens = start[:, None] + jnp.arange(length)[None]
        ends = jnp.where(hidden[:, tokens].any(-1), -1, start[None] + length - 1)
        return cls(ck, cv, poison[:, tokens].sum(-1) + k_over + v_over, ends, ranked)

    def complete(self, last: Int[Array, "M t"]) -> Bool[Array, "M t runs"]:
        """Which runs end at or before the key `last` of each query."""
        return (self.ends >= 0)[:, None] & (self.ends[:, None] <= last[..., None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Compressed:
    """The state of decoding: a cache of all tokens, and the compressed runs in it. `apart`, if the
    branches have their own keys: the selected branch's cache and the window's ring."""

    cache: _cache.Cache
    k: Float[Array, "*B K runs H"]  # float32 or wider
    v: Float[Array, "*B K runs D"]
    poison: Float[Array, "*B K runs"]
    apart: tuple[_cache.Cache, _cache.Cache] | None = None

    def runs(self, stride: int, length: int) -> Runs:
        """The runs of `length` tokens; those that are not whole yet end past the last token."""
        n = self.poison.ndim - 2
        flat = lambda x: x.reshape(math.prod(x.shape[: n + 1]), *x.shape[n + 1 :])
        k, v, poison = map(flat, (self.k, self.v, self.poison))
        ends = jnp.arange(k.shape[1]) * stride + length - 1
        return Runs(k, v, poison, ends[None], *narrow(k))

    def after(self, cache: _cache.Cache, stride: int, arrays: dict[str, Array]) -> "Compressed":
        """The state once the cache holds one token more: its last whole run is compressed, again
        if it was before. Until one is whole, the first is written, which no token sees yet."""
        n, runs = self.poison.ndim - 1, self.poison.shape[-1]
        if runs == 0:
            return dataclasses.replace(self, cache=cache)
        length = arrays["key_position"].shape[1]
        at = jnp.clip((cache.length - length) // stride, 0, runs - 1)
        run = lambda x: lax.dynamic_slice_in_dim(x, at * stride, length, n)
        made = lambda x, name: compress(
            x.reshape(math.prod(x.shape[:n]), *x.shape[n:]), stride, *maps(arrays, name, x.dtype)
        )
        (ck, k_over), (cv, v_over) = (
            made(wide(run(cache.k)), "key"),
            made(wide(run(cache.v)), "value"),
        )

        def put(x, new):
            new = new.reshape(*x.shape[:n], 1, *x.shape[n + 1 :]).astype(x.dtype)
            return lax.dynamic_update_slice_in_dim(x, new, at, n)

        lost = wide(run(cache.poison)).sum(-1).reshape(k_over.shape)
        new = ck, cv, lost + k_over + v_over
        k, v, poison = map(put, (self.k, self.v, self.poison), new)
        return dataclasses.replace(self, cache=cache, k=k, v=v, poison=poison)
