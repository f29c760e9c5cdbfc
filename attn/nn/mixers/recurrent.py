"""Recurrent layers: a cell that goes over the tokens one by one. O(T) steps in a row."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from attn._axes import aligned
from attn._settings import check_count, check_flags
from attn._varying import vary
from attn.masks import Causal, Padding, Segments
from attn.nn.keys import fold
from attn.nn.mixers.base import Mixer, MixerLayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrent(Mixer):
    """A cell of `width` numbers (None: as wide as the encoder), projected back to the encoder's.

    Both directions (Schuster & Paliwal 1997, doi:10.1109/78.650093) have a cell each, and their
    outputs lie side by side before the projection; then it cannot be causal. The state, in float32,
    stands still on tokens that `Padding` hides and is 0 where a document of `Segments` begins: at
    each change of id, also to one that was there before, which other layers take for one document.
    """

    width: int | None = None
    bidirectional: bool = False

    def __post_init__(self):
        if self.width is not None:
            check_count("width", self.width)
        check_flags(self)

    @property
    def honours(self):
        return (Padding, Segments) if self.bidirectional else (Causal, Padding, Segments)

    @property
    def past_only(self) -> bool:
        return not self.bidirectional

    @property
    def name(self) -> str:
        return type(self).__name__ + "(bidirectional=True)" * self.bidirectional

    @abc.abstractmethod
    def cell(self, inputs: int, hidden: int, *, key: Array) -> nnx.Module:
        """What maps (state, x) to (state, h), where h is the last array of the state."""

    def layer(self, width, *, dtype, key):
        kind = BothWays if self.bidirectional else Forward
        return kind(self, width, dtype=dtype, key=key)

    @classmethod
    def examples(cls):
        return cls(), cls(width=3, bidirectional=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTM(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735) with
    forget gates (Gers et al. 2000), whose biases start at 0."""

    def cell(self, inputs, hidden, *, key):
        return nnx.OptimizedLSTMCell(inputs, hidden, dtype=jnp.float32, rngs=nnx.Rngs(key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRU(Recurrent):
    """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078), reset after the product with the
    state."""

    def cell(self, inputs, hidden, *, key):
        return nnx.GRUCell(inputs, hidden, dtype=jnp.float32, rngs=nnx.Rngs(key))


class Forward(MixerLayer):
    """One cell, from the first token to the last."""

    def __init__(self, mixer: Recurrent, width: int, *, dtype, key: Array):
        super().__init__(mixer, width, dtype)
        hidden = mixer.width or width
        self.forward = mixer.cell(width, hidden, key=fold(key, "forward"))
        self.out = _projection(fold(key, "out"), hidden, width)

    def mix(self, x, seen):
        hidden = run(self.forward, self.empty(x.shape[:-2]), x, seen.padding, seen.segments)[1]
        return _project(hidden, self.out, self.dtype)

    def empty(self, batch):
        return _zeros(self.forward, batch)

    def advance(self, state, x):
        state, hidden = run(self.forward, state, x)
        return state, _project(hidden, self.out, self.dtype)


class BothWays(MixerLayer):
    """A cell each from the first token to the last and back."""

    def __init__(self, mixer: Recurrent, width: int, *, dtype, key: Array):
        super().__init__(mixer, width, dtype)
        hidden = mixer.width or width
        self.forward = mixer.cell(width, hidden, key=fold(key, "forward"))
        self.backward = mixer.cell(width, hidden, key=fold(key, "backward"))
        self.out = _projection(fold(key, "out"), 2 * hidden, width)

    def mix(self, x, seen):
        start, terms = _zeros(self.forward, x.shape[:-2]), (seen.padding, seen.segments)
        forward = run(self.forward, start, x, *terms)[1]
        backward = run(self.backward, start, x, *terms, reverse=True)[1]
        hidden = jnp.concatenate([forward, backward], -1)
        return _project(hidden, self.out, self.dtype)


def run(
    cell: nnx.Module,
    state: Any,
    x: Float[Array, "*B T W"],
    padding: Padding | None = None,
    segments: Segments | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Float[Array, "*B T hidden"]]:
    """(the state after all tokens, h after each), from the last token to the first if `reverse`."""
    batch, T = x.shape[:-2], x.shape[-2]
    in_turn = lambda y: jnp.moveaxis(jnp.broadcast_to(y, (*batch, T)), -1, 0)[..., None]
    there = True if padding is None else padding.seen_keys(T)
    fresh = False if segments is None else _changes(segments, -1 if reverse else 1)

    def step(state, token):
        x, there, fresh = token
        state = jax.tree.map(lambda s: jnp.where(fresh, 0, s), state)
        state = jax.tree.map(lambda new, s: jnp.where(there, new, s), cell(state, x)[0], state)
        return state, jax.tree.leaves(state)[-1]

    tokens = jnp.moveaxis(x.astype(jnp.float32), -2, 0), in_turn(there), in_turn(fresh)
    state, hidden = jax.lax.scan(step, vary(state, tokens), tokens, reverse=reverse)
    hidden = jnp.moveaxis(hidden, 0, -2)
    if segments is not None:
        # a query with another id than its key sees none of the document that it stands in
        own = jnp.equal(*aligned(*segments.ids))
        hidden = jnp.where(*aligned(own[..., None], hidden), 0)
    return state, hidden


def _changes(segments: Segments, back: int) -> Bool[Array, "*B T"]:
    """Whether the token at t is of another document than that at t - back."""
    differs = lambda ids: ids != jnp.roll(ids, back, axis=-1)
    return jnp.logical_or(*aligned(*map(differs, segments.ids)))


def _zeros(cell, batch: tuple[int, ...]):
    # the key is for draws that there are none of
    return cell.initialize_carry((*batch, cell.in_features), nnx.Rngs(0))


def _projection(key: Array, hidden: int, width: int) -> nnx.Param:
    return nnx.Param(jax.nn.initializers.lecun_normal()(key, (hidden, width), jnp.float32))


def _project(hidden, out, dtype) -> Float[Array, "*B T W"]:
    return hidden.astype(dtype) @ out[...].astype(dtype)
