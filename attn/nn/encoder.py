"""A bidirectional encoder around any mechanism: embed, layers, head."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats
from attn._integers import check_integers, check_range
from attn._settings import check_count, is_integer
from attn.masks import FULL, Mask
from attn.nn.config import EncoderConfig, check_config
from attn.nn.config_rules import TURNED
from attn.nn.embedding import Embedding
from attn.nn.head import Head
from attn.nn.inputs import alone, check_numbers, prepare
from attn.nn.keys import check_key, fold
from attn.nn.norm import norm_of
from attn.nn.score_bias import relative_table, score_bias
from attn.nn.stack import Stack


class Encoder(nnx.Module):
    """An encoder from tokens to scores of classes, as its `EncoderConfig` says.

    Each parameter is drawn from `key` folded with its path, so two encoders with one key and
    different mechanisms start equal in every parameter that both have. Padding (`lengths`) affects
    neither a real position nor the pooled output, in value or gradient; but its amount affects
    mechanisms that divide by the number of keys or draw their pattern for it, unless given a
    `length` (`Sigmoid`, `Relu`, `Cosformer`, `BigBird`), patterns that are fitted to it unless
    given sizes (`FixedPattern`, `StridedPattern`, `AxialPattern`, `Local2DPattern`), and
    `Hierarchical`. `mask` is over the positions that the layers see: with `pooling="cls"` index 0
    is CLS and token t is t + 1. Positions count along the row: of documents packed into one
    (`Segments`), "sinusoidal", "grid" and "learned" ones go on from one document to the next, so
    its scores depend on its place; "rotary", "xpos", "alibi" and "t5" are of distances alone.
    """

    def __init__(self, config: EncoderConfig, *, key: Array):
        check_config(config, EncoderConfig)
        check_key(key)
        self.config = config
        self.embedding = Embedding(config, key=fold(key, "embedding"))
        self.stack = Stack(config, key=fold(key, "stack"))
        # pre-norm blocks leave the residual sum unnormalised
        self.norm = norm_of(config)(config.width) if config.norm_position == "pre" else None
        self.head = Head(config, key=fold(key, "head"))
        self.relative = relative_table(config, key=key)

    def __call__(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
        at: Int[Array, "*B P"] | None = None,
    ) -> Float[Array, "*A classes"]:
        """Scores [*B, classes]; [*B, T, classes] for head "token", or [*B, P, classes] at the
        positions `at` alone, since scores of a whole vocabulary everywhere may cost more than the
        layers. For "dual", tokens are [*A, 2, T] and scores [*A, classes]. Tokens are ids, or
        vectors of the config's `token_width`. Without a dropout key nothing is dropped.

        Raises ValueError or TypeError for what does not fit the config, NotImplementedError for a
        mask or bias that the mechanism cannot honour. Scores at traced positions `at` that do not
        exist are NaN.
        """
        if at is not None and self.config.head != "token":
            raise ValueError(f"at: expected None with head={self.config.head!r}, got positions")
        tokens, real, mask = prepare(self.config, tokens, mask, lengths)
        x = self.layers(tokens, mask, dropout_key)
        if at is not None:
            _check_at(at, x.shape[:-1])
            at = jnp.asarray(at, jnp.int32)
            # a traced one below 0 would read from the end; past it, all is NaN
            at = jnp.where(at < 0, x.shape[-2], at)
            x = jnp.take_along_axis(x, at[..., None], axis=-2)
        return self.head(x, real)

    def features(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B L W"]:
        """The input of the head, before any pooling. Raises as a call does."""
        tokens, _, mask = prepare(self.config, tokens, mask, lengths)
        return self.layers(tokens, mask, dropout_key)

    def maps(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> tuple[Float[Array, "*B N L L"], ...]:
        """The effective attention matrix of each layer and head, without dropout; L is T, or T + 1
        with CLS. Raises NotImplementedError if a mechanism has none."""
        weights = lambda layer, x, **context: layer.weights(x, **context)
        return self.look(tokens, weights, mask=mask, lengths=lengths)

    def look(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        see: Callable[..., Any],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> tuple:
        """see(layer, x, mask=..., bias=..., positions=...) of the token mixer of each layer, an
        `Attention` or a `MixerLayer`, and its input x, without dropout; with first_values=... if it
        takes a share of them."""
        tokens, _, mask = prepare(self.config, tokens, mask, lengths)
        x = self.embedding(tokens, dropout_key=None)
        return self.stack.look(x, see, **self._context(x, mask))

    def receptive_field(
        self,
        tokens: Int[Array, "T"] | Float[Array, "T F"],
        rows: Int[Array, " R"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, ""] | None = None,
        probes: int = 64,
    ) -> Float[Array, "R L"]:
        """|d y_i / d x_j| (Frobenius) for i in `rows`: how much the input of the head at i depends
        on the input of the first layer at j. Pulls back `probes` orthonormal directions of y_i, so
        exact for widths up to `probes`, unbiased in its square beyond; R x probes backward passes.
        Raises as a call does, and ValueError for rows outside 0 to L - 1 or not [R], probes below 1
        and more than one sequence (for "dual" too, which reads each by itself)."""
        check_integers("rows", rows)
        if rows.ndim != 1:
            raise ValueError(f"rows: expected shape ['R'], got {list(rows.shape)}")
        check_count("probes", probes)
        of_ids = self.config.token_width is None
        # what is repeated below must be an array
        check_integers("tokens", tokens) if of_ids else check_floats(tokens=tokens)
        if not (lengths is None or is_integer(lengths)):
            check_integers("lengths", lengths)
        axes = ["T"] if of_ids else ["T", "F"]
        if jnp.ndim(tokens) != len(axes):
            got = list(jnp.shape(tokens))
            raise ValueError(f"tokens: expected one sequence {axes}, without batch axes, got {got}")
        check_numbers(tokens, lengths)
        count = min(probes, self.config.width)
        # each probe has a copy of the input: XLA 0.10.2 on a CPU gets a jitted pullback of layer
        # norms wrong when it is vmapped over many cotangents of one input
        repeated = lambda x: x if x is None else jnp.broadcast_to(x, (count, *jnp.shape(x)))
        tokens, _, mask = prepare(alone(self.config), repeated(tokens), mask, repeated(lengths))
        stack = lambda x: self.normed(self.stack(x, dropout_key=None, **self._context(x, mask)))
        x = self.embedding(tokens, dropout_key=None)
        *_, L, width = x.shape
        check_range("rows", rows, 0, L - 1)
        if L == 0:
            return jnp.zeros((0, 0), jnp.float32)
        y, pullback = jax.vjp(stack, x)
        directions = jax.random.orthogonal(fold(jax.random.key(0), "probes"), width)[:count]
        directions = (directions * (width / count) ** 0.5).astype(y.dtype)

        def row(i: Int[Array, ""]) -> Float[Array, " L"]:
            (back,) = pullback(jnp.zeros_like(y).at[:, i].set(directions))
            return jnp.sqrt((back.astype(jnp.float32) ** 2).sum((0, 2)))

        return jax.lax.map(row, rows)

    def layers(
        self, tokens: Array, mask: Mask, dropout_key: Array | None
    ) -> Float[Array, "*B L W"]:
        """The `features` of inputs that `prepare` has returned."""
        x = self.embedding(tokens, dropout_key=fold(dropout_key, "embedding"))
        key = fold(dropout_key, "stack")
        return self.normed(self.stack(x, dropout_key=key, **self._context(x, mask)))

    def normed(self, x: Float[Array, "*B L W"]) -> Float[Array, "*B L W"]:
        """The input of the head: the last layer's output, normalised if blocks are pre-norm."""
        return x if self.norm is None else self.norm(x)

    def _context(self, x: Float[Array, "*B L W"], mask: Mask) -> dict:
        """The arguments of every layer besides x."""
        positions = jnp.arange(x.shape[-2]) if self.config.positions in TURNED else None
        bias = score_bias(self.config, self.relative, mask)
        return dict(mask=mask, bias=bias, positions=positions)


def _check_at(at, rows: tuple[int, ...]) -> None:
    """Raise unless `at` is integers [*batch, P] below L, where a batch axis may be 1."""
    check_integers("at", at)
    *batch, L = rows
    check_range("at", at, 0, L - 1)
    fits = at.ndim == len(batch) + 1 and all(n in (1, size) for n, size in zip(at.shape, batch))
    if not fits:
        raise ValueError(f"at: expected shape {[*batch, 'P']}, got {list(at.shape)}")
