"""The encoder-decoder of Vaswani et al. 2017 (arXiv:1706.03762) around any mechanism."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._integers import check_integers
from attn._settings import check_count, is_integer
from attn.dense.dot_product import Softmax
from attn.masks import FULL, Causal, Mask, Padding
from attn.mechanism import Mechanism
from attn.nn.beam import beam_search, check_settings
from attn.nn.config import EncoderConfig, check_config
from attn.nn.config_rules import TURNED, uncounted
from attn.nn.cross import CrossBlock, check_cross
from attn.nn.embedding import Embedding
from attn.nn.encoder import Encoder
from attn.nn.head import Head
from attn.nn.inputs import prepare
from attn.nn.keys import fold
from attn.nn.norm import norm_of
from attn.nn.sampling import greedy
from attn.nn.score_bias import relative_table, score_bias
from attn.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """Two `EncoderConfig`s with head "token": `source` is the encoder's (its `classes` are not
    used), `target` the decoder's, whose classes are the target's vocabulary; if its positions are a
    bias (ALiBi, T5), its mechanisms must honour one. `cross` is the mechanism between the two;
    `bos` is the id in the target's vocabulary that stands before the first token.

    Raises ValueError, by name, for fields that do not fit together.
    """

    source: EncoderConfig
    target: EncoderConfig
    cross: Mechanism = dataclasses.field(default_factory=Softmax)
    bos: int = 0

    def __post_init__(self):
        source, target = self.source, self.target
        for name, one in (("source", source), ("target", target)):
            check_config(one, EncoderConfig, name)
            if one.head != "token":
                raise ValueError(f"{name}.head: expected 'token', got {one.head!r}")
        if source.width != target.width:
            raise ValueError(
                f"target.width: expected the source's {source.width}, got {target.width}"
            )
        if target.vocab_size is None:
            raise ValueError("target.vocab_size: expected one, for what is written, got None")
        if not (is_integer(self.bos) and 0 <= self.bos < target.vocab_size):
            raise ValueError(f"bos: expected an id below {target.vocab_size}, got {self.bos!r}")
        if target.classes > target.vocab_size:
            raise ValueError(
                f"target.classes: expected at most the vocabulary of {target.vocab_size}, since "
                f"what is written is read again, got {target.classes}"
            )
        if wrong := uncounted(target):
            raise ValueError(f"target.{wrong[0]}")
        check_cross(self.cross)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seq2SeqState:
    """The state of decoding: how many tokens there were, the state of each layer, which holds the
    source, and the source's lengths."""

    length: Int[Array, ""]
    layers: Any
    lengths: Int[Array, "*B"] | None


class Seq2Seq(nnx.Module):
    """Scores of every next token of a target, given its source and the tokens before it.

    The encoder's output is normalised before it is attended to if blocks are pre-norm. Padding of
    the source (`lengths`) affects no score, in value or gradient, except by a `cross` that counts
    it (`Sigmoid`, `Relu` without `length`). `mask` says which source tokens see each other:
    `Causal()` for mechanisms that are not defined without it.
    """

    def __init__(self, config: Seq2SeqConfig, *, key: Array):
        check_config(config, Seq2SeqConfig)
        target = config.target
        self.config = config
        self.encoder = Encoder(config.source, key=fold(key, "encoder"))
        self.encoder.head = None  # what is attended to is its features
        self.embedding = Embedding(target, key=fold(key, "embedding"))
        across = dict(cross=config.cross, source_length=config.source.max_length)
        block = functools.partial(CrossBlock, **across)
        self.stack = Stack(target, block=block, key=fold(key, "stack"))
        self.norm = norm_of(target)(target.width) if target.norm_position == "pre" else None
        self.head = Head(target, key=fold(key, "head"))
        self.relative = relative_table(target, key=key)

    def __call__(
        self,
        source: Int[Array, "*B S"] | Float[Array, "*B S F"],
        target_in: Int[Array, "*B T"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B T classes"]:
        """Scores of the token that follows each of `target_in`, whose first is `bos`; `lengths` are
        the source's. Raises as `Encoder` does."""
        key = fold(dropout_key, "encoder")
        source = self.encode(source, mask=mask, lengths=lengths, dropout_key=key)
        self._check("target_in", target_in, source.shape[:-2])
        x = self.embedding(target_in, dropout_key=fold(dropout_key, "embedding"))
        context = self._context(jnp.arange(x.shape[-2]), lengths)
        key = fold(dropout_key, "stack")
        return self._scores(self.stack(x, source=source, dropout_key=key, **context))

    def encode(
        self,
        source: Int[Array, "*B S"] | Float[Array, "*B S F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B S W"]:
        """The encoder's output, which is meaningless at padding."""
        tokens, _, mask = self._prepared(source, mask, lengths)
        return self.encoder.layers(tokens, mask, dropout_key)

    def prefill(
        self,
        source: Int[Array, "*B S"] | Float[Array, "*B S F"],
        prompt: Int[Array, "*B T"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> tuple[Seq2SeqState, Float[Array, "*B classes"]]:
        """(state, scores of the next token) after at least one target token, the first `bos`.

        Raises as `Encoder` does, NotImplementedError for mechanisms that do not decode, or not with
        the target's positions.
        """
        source = self.encode(source, mask=mask, lengths=lengths)
        self._check("prompt", prompt, source.shape[:-2])
        x, T = self.embedding(prompt, dropout_key=None), prompt.shape[-1]
        how = dict(source=source, max_length=self.config.target.max_length)
        layers, x = self.stack.prefill(x, **how, **self._context(jnp.arange(T), lengths))
        state = Seq2SeqState(jnp.int32(T), layers, lengths)
        return state, self._scores(x[..., -1:, :])[..., 0, :]

    def step(
        self, state: Seq2SeqState, token: Int[Array, "*B"]
    ) -> tuple[Seq2SeqState, Float[Array, "*B classes"]]:
        """(state, scores of the next token) after one more token, equal to those of all at once.
        Past the target's `max_length` the scores are NaN. Raises TypeError for a foreign state."""
        if not isinstance(state, Seq2SeqState):
            raise TypeError(f"state: expected that of `prefill`, got {type(state).__name__}")
        check_integers("token", token)
        self._check("token", token[..., None])
        at = state.length
        x = self.embedding(token[..., None], dropout_key=None, start=at)
        layers, x = self.stack.step(state.layers, x, **self._context(at[None], state.lengths))
        scores = self._scores(x)[..., 0, :]
        scores = jnp.where(at < self.config.target.max_length, scores, jnp.nan)
        return Seq2SeqState(at + 1, layers, state.lengths), scores

    def greedy(
        self,
        source: Int[Array, "*B S"] | Float[Array, "*B S F"],
        steps: int,
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> Int[Array, "*B steps"]:
        """`steps` tokens, each the likeliest after those before it; compiled as one program. Tokens
        after an end token are meaningless, and scores of NaN give -1. Raises as `prefill`, and
        ValueError for more steps than the target's `max_length`."""
        self._check_steps(steps)
        self._prepared(source, mask, lengths)  # before `jit` makes 32 bits of everything
        return _greedy(*nnx.split(self), source, steps, mask, lengths)

    def beam(
        self,
        source: Int[Array, "*B S"] | Float[Array, "*B S F"],
        steps: int,
        *,
        width: int,
        end: int,
        alpha: float = 0.6,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> tuple[Int[Array, "*B width steps"], Float[Array, "*B width"]]:
        """(hypotheses, scores) of `beam_search`, best first; compiled as one program. Raises what
        `greedy` and `beam_search` raise."""
        self._check_steps(steps)
        self._prepared(source, mask, lengths)  # before `jit` makes 32 bits of everything
        check_count("width", width)
        check_settings(self.config.target.classes, steps, end, alpha)
        if not self._batch(source):  # some states have leaves with batch axes only
            source, mask, lengths = jax.tree.map(lambda x: x[None], (source, mask, lengths))
            how = dict(width=width, end=end, alpha=alpha, mask=mask, lengths=lengths)
            tokens, scores = self.beam(source, steps, **how)
            return tokens[0], scores[0]
        return _beam(*nnx.split(self), source, (steps, width, end, alpha), mask, lengths)

    def maps(
        self, source, target_in, *, mask: Mask = FULL, lengths=None
    ) -> tuple[Float[Array, "*B N T S"], ...]:
        """The cross-attention's effective matrix of each layer and head, without dropout."""
        source = self.encode(source, mask=mask, lengths=lengths)
        self._check("target_in", target_in, source.shape[:-2])
        x = self.embedding(target_in, dropout_key=None)
        context = self._context(jnp.arange(x.shape[-2]), lengths)
        weights = lambda cross, x, **across: cross.weights(x, **across)
        return self.stack.look(x, weights, source=source, **context)

    def _context(self, positions: Int[Array, " T"], lengths) -> dict:
        """The arguments of every layer besides x and the source."""
        target = self.config.target
        return dict(
            mask=FULL if lengths is None else Padding(lengths),
            bias=score_bias(target, self.relative, Causal()),
            positions=positions if target.positions in TURNED else None,
        )

    def _scores(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B T classes"]:
        x = x if self.norm is None else self.norm(x)
        return self.head(x, jnp.ones((1,) * (x.ndim - 2) + x.shape[-2:-1], bool))

    def _prepared(self, source, mask, lengths):
        return prepare(self.config.source, source, mask, lengths, name="source")

    def _batch(self, source) -> tuple[int, ...]:
        """The batch axes of a source."""
        return source.shape[: -1 if self.config.source.token_width is None else -2]

    def _check(self, name, tokens, batch: tuple[int, ...] | None = None) -> None:
        """Raise unless these are tokens of the target, with the `batch` axes of the source."""
        prepare(self.config.target, tokens, FULL, None, name=name)
        if tokens.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one, got {list(tokens.shape)}")
        if batch not in (None, tokens.shape[:-1]):
            want = [*batch, "T"]
            raise ValueError(f"{name}: expected {want} to go with source, got {list(tokens.shape)}")

    def _check_steps(self, steps) -> None:
        most = self.config.target.max_length
        if not is_integer(steps) or not 0 < steps <= most:
            raise ValueError(f"steps: expected 1 to max_length={most}, got {steps!r}")


@functools.partial(jax.jit, static_argnums=(0, 3))
def _greedy(graph, params, source, steps: int, mask, lengths):
    """Compiled once for each model, shape and number of steps."""
    model = nnx.merge(graph, params)
    first = jnp.full((*model._batch(source), 1), model.config.bos, jnp.int32)
    state, scores = model.prefill(source, first, mask=mask, lengths=lengths)
    return greedy(model.step, state, scores, steps)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _beam(graph, params, source, settings, mask, lengths):
    """The source is the same for all hypotheses: only the layers' own states are gathered."""
    steps, width, end, alpha = settings
    model = nnx.merge(graph, params)
    model.stack = model.stack.looped()  # a scan's layers are a leading axis, before the batch
    first = jnp.full((*model._batch(source), 1), model.config.bos, jnp.int32)
    state, scores = model.prefill(source, first, mask=mask, lengths=lengths)
    batch = len(model._batch(source))

    def wide(x):
        shape = (*x.shape[:batch], width, *x.shape[batch:])
        return x if x.ndim == 0 else jnp.broadcast_to(jnp.expand_dims(x, batch), shape)

    state, scores = jax.tree.map(wide, (state, scores))

    def step(given, token):
        length, own = given
        layers = [dataclasses.replace(old, own=new) for old, new in zip(state.layers, own)]
        after = dataclasses.replace(state, length=length, layers=tuple(layers))
        after, scores = model.step(after, token)
        return (after.length, [layer.own for layer in after.layers]), scores

    own = state.length, [layer.own for layer in state.layers]
    return beam_search(step, own, scores, steps=steps, end=end, alpha=alpha)
