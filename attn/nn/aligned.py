"""What the recurrent encoder-decoders with attention have in common: reading, writing, decoding."""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from attn._axes import aligned
from attn._integers import check_fits, check_integers, check_lengths
from attn._settings import check_count, is_integer, is_number
from attn._varying import vary
from attn.dense.additive import Additive
from attn.dense.luong import Luong
from attn.masks import FULL, Mask, Padding
from attn.nn.beam import beam_search, check_settings
from attn.nn.dropout import dropout
from attn.nn.embedding import look_up
from attn.nn.keys import check_key, fold
from attn.nn.sampling import greedy


class Aligned(nnx.Module, abc.ABC):
    """Scores of each target token, from a state, the token before it and a context: the mean of one
    vector per source token, weighted by their alignment with the state. O(T S) time. Tokens are
    embedded in `width` numbers, a share `dropout` of which is dropped; `bos` stands before the
    first target token. Padding of the source affects nothing, in value or gradient.
    """

    max_length: int | None = None  # target tokens that there is room for; None: any number

    def __init__(
        self,
        *,
        vocab_size: int,
        classes: int,
        width: int,
        bos: int = 0,
        dropout: float = 0.0,
        key: Array,
    ):
        check_count("vocab_size", vocab_size)
        check_count("classes", classes)
        check_count("width", width)
        if not (is_integer(bos) and 0 <= bos < classes):
            raise ValueError(f"bos: expected an id below classes={classes}, got {bos!r}")
        if not (is_number(dropout) and 0 <= dropout < 1):
            raise ValueError(f"dropout: expected a number in [0, 1), got {dropout!r}")
        check_key(key)
        draw = lambda name, *shape: jax.random.normal(fold(key, name), shape, jnp.float32)
        self.width, self.bos, self.rate = width, bos, dropout
        self.source_table = nnx.Param(draw("source", vocab_size, width))
        self.target_table = nnx.Param(draw("target", classes, width))
        self.out = nnx.Linear(width, classes, rngs=nnx.Rngs(fold(key, "out")))

    @abc.abstractmethod
    def read(self, x: Float[Array, "*B S W"], real: Bool[Array, "*#B S"]) -> tuple[Any, Array]:
        """(the state before the first target token, the vectors [*B, S, W] of a source)."""

    @abc.abstractmethod
    def write(
        self, state: Any, y: Float[Array, "*B W"], h: Float[Array, "*B S W"], mask: Mask
    ) -> tuple[Any, Float[Array, "*B W"], Float[Array, "*B S"]]:
        """(state, the vector that the scores are a linear map of, alignment) after token y."""

    def __call__(
        self,
        source: Int[Array, "*B S"],
        target_in: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B T classes"]:
        """Scores of the token that follows each of `target_in`, whose first is `bos`.

        Raises TypeError or ValueError for tokens and lengths that do not fit.
        """
        return self._run(source, target_in, lengths, dropout_key)[0]

    def alignments(
        self,
        source: Int[Array, "*B S"],
        target_in: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
    ) -> Float[Array, "*B T S"]:
        """The alignment weights of each target token over the tokens of the source."""
        return self._run(source, target_in, lengths, None)[1]

    def greedy(
        self,
        source: Int[Array, "*B S"],
        steps: int,
        *,
        lengths: Int[Array, "*B"] | None = None,
    ) -> Int[Array, "*B steps"]:
        """`steps` tokens, each the likeliest after those before it; compiled as one program."""
        check_count("steps", steps)
        self._check_room("steps", steps)
        _check_source(source, lengths)
        return _greedy(*nnx.split(self), source, steps, lengths)

    def beam(
        self,
        source: Int[Array, "*B S"],
        steps: int,
        *,
        width: int,
        end: int,
        alpha: float = 0.6,
        lengths: Int[Array, "*B"] | None = None,
    ) -> tuple[Int[Array, "*B width steps"], Float[Array, "*B width"]]:
        """(hypotheses, scores) of `beam_search`, best first; compiled as one program."""
        _check_source(source, lengths)
        check_count("width", width)
        check_settings(self.out.out_features, steps, end, alpha)
        self._check_room("steps", steps)
        return _beam(*nnx.split(self), source, (steps, width, end, alpha), lengths)

    def _next(self, state, token, h, mask):
        """(state, scores of the next token) after one more token."""
        y = look_up(self.target_table[...], token)
        state, out, _ = self.write(state, y, h, mask)
        return state, self.out(out)

    def _run(self, source, target_in, lengths, key):
        state, h, mask = self._read(source, lengths, key)
        _check("target_in", target_in)
        if target_in.shape[:-1] != source.shape[:-1]:
            want, got = [*source.shape[:-1], "T"], list(target_in.shape)
            raise ValueError(f"target_in: expected {want} to go with source, got {got}")
        self._check_room("target_in", target_in.shape[-1])
        y = look_up(self.target_table[...], target_in)
        y = jnp.moveaxis(dropout(y, self.rate, fold(key, "target")), -2, 0)

        def one(state, y):
            state, out, alignment = self.write(state, y, h, mask)
            return state, (out, alignment)

        _, (out, alignments) = jax.lax.scan(one, vary(state, y, h), y)
        out, alignments = (jnp.moveaxis(x, 0, -2) for x in (out, alignments))
        return self.out(out), alignments

    def _check_room(self, name: str, tokens: int) -> None:
        if self.max_length is not None and tokens > self.max_length:
            what = f"at most max_length={self.max_length} target tokens"
            raise ValueError(f"{name}: expected {what}, got {tokens}")

    def _read(self, source, lengths, key):
        _check_source(source, lengths)
        real = jnp.ones((1,) * (source.ndim - 1) + source.shape[-1:], bool)
        if lengths is not None:
            real = jnp.less(*aligned(jnp.arange(source.shape[-1]), lengths[..., None]))
            source = jnp.where(real, source, 0)
        x = look_up(self.source_table[...], source)
        x = dropout(x, self.rate, fold(key, "source"))
        state, h = self.read(x, real)
        return state, h, FULL if lengths is None else Padding(lengths)


def recur(
    cell: nnx.Module, carry: Any, x: Float[Array, "*B S W"], real: Bool[Array, "*#B S"], **how
) -> tuple[Any, Float[Array, "*B S V"]]:
    """(last carry, outputs) of a Flax cell over the real tokens, from the last to the first with
    `reverse=True`. Padding changes no carry."""

    def one(carry, given):
        x, real = given
        new, out = cell(carry, x)
        keep = lambda new, old: jnp.where(real[..., None], new, old)
        return jax.tree.map(keep, new, carry), keep(out, jnp.zeros_like(out))

    over_time = (jnp.moveaxis(x, -2, 0), jnp.moveaxis(real, -1, 0))
    carry, out = jax.lax.scan(one, vary(carry, over_time), over_time, **how)
    return carry, jnp.moveaxis(out, 0, -2)


def align(
    mechanism: Additive | Luong,
    learned: nnx.Dict,
    s: Float[Array, "*B W"],
    h: Float[Array, "*B S W"],
    mask: Mask,
) -> tuple[Float[Array, "*B W"], Float[Array, "*B S"]]:
    """(context, alignment) of a state with the vectors of a source, by one head."""
    learned = {name: x[...] for name, x in learned.items()}
    a = mechanism.weights(s[..., None, None, :], h[..., None, :], mask=mask, **learned)
    a = a[..., 0, 0, :]
    return jnp.einsum("...s,...sw->...w", a, h), a


def learned_of(mechanism: Additive | Luong, width: int, key: Array) -> nnx.Dict:
    """The mechanism's learned arrays as parameters, for one head."""
    heads = dict(num_heads=1, num_kv_heads=1, head_dim=width, value_dim=width, max_length=1)
    return nnx.Dict({name: nnx.Param(x) for name, x in mechanism.init(key, **heads).items()})


def _check(name: str, tokens) -> None:
    check_integers(name, tokens)
    if tokens.ndim == 0 or tokens.shape[-1] == 0:
        raise ValueError(f"{name}: expected at least one token, got {list(tokens.shape)}")
    check_fits(name, tokens)


def _check_source(source, lengths) -> None:
    _check("source", source)
    if lengths is None:
        return
    check_integers("lengths", lengths)
    if lengths.shape != source.shape[:-1]:
        raise ValueError(
            f"lengths: expected shape {list(source.shape[:-1])}, got {list(lengths.shape)}"
        )
    check_lengths(lengths)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _greedy(graph, params, source, steps: int, lengths):
    return greedy(*_started(nnx.merge(graph, params), source, lengths), steps)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _beam(graph, params, source, settings, lengths):
    steps, width, end, alpha = settings
    model = nnx.merge(graph, params)
    # each hypothesis reads the source by itself, which costs no more than writing does
    source = jnp.repeat(source[..., None, :], width, axis=-2)
    lengths = None if lengths is None else jnp.repeat(lengths[..., None], width, axis=-1)
    step, state, scores = _started(model, source, lengths)
    return beam_search(step, state, scores, steps=steps, end=end, alpha=alpha)


def _started(model: Aligned, source, lengths):
    """(step, state, scores of the first token) to decode from."""
    state, h, mask = model._read(source, lengths, None)
    step = lambda state, token: model._next(state, token, h, mask)
    return step, *step(state, jnp.full(source.shape[:-1], model.bos, jnp.int32))
