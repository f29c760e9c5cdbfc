"""A causal language model around any mechanism: scores of every next token, and decoding."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._integers import check_fits, check_integers
from attn._settings import check_count
from attn.masks import FULL, Causal, Mask
from attn.nn.config import EncoderConfig, check_config
from attn.nn.config_rules import TURNED, uncounted
from attn.nn.encoder import Encoder
from attn.nn.sampling import check_sampling, sample
from attn.nn.score_bias import score_bias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecoderState:
    """The state of decoding: how many tokens there were, and the state of each layer."""

    length: Int[Array, ""]
    layers: Any


class Decoder(nnx.Module):
    """An `Encoder` with head "token" under `Causal`: scores of every next token.

    It has the parameters of `Encoder(config, key=key)`. `prefill` and `step` decode with the
    mechanisms' own states (a cache of keys, a ring buffer, a sum), whose size is that of
    `jax.eval_shape(decoder.prefill, prompt)`. Raises ValueError for a head other than "token" and
    for tokens that are vectors.
    """

    def __init__(self, config: EncoderConfig, *, key: Array):
        check_config(config, EncoderConfig)
        if config.head != "token":
            raise ValueError(f"head: expected 'token' for a Decoder, got {config.head!r}")
        if config.vocab_size is None:
            raise ValueError("vocab_size: expected one for a Decoder, which writes ids, got None")
        self.config = config
        self.encoder = Encoder(config, key=key)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B T classes"]:
        """Scores, at every position, of the next token; `mask` (of documents, say) is joined with
        `Causal`. Which positions run on from one document to the next `Encoder` says, and it raises
        as that does."""
        mask = mask & Causal() if isinstance(mask, Mask) else mask
        return self.encoder(tokens, mask=mask, lengths=lengths, dropout_key=dropout_key)

    def prefill(
        self, prompt: Int[Array, "*B T"]
    ) -> tuple[DecoderState, Float[Array, "*B classes"]]:
        """(state, scores of the next token) after a prompt of at least one token, without padding.

        Raises ValueError or TypeError for a prompt that does not fit, ValueError for mechanisms
        that count the keys without a `length`, or fit their pattern to the keys,
        NotImplementedError for mechanisms and positions that do not decode token by token.
        """
        self._check("prompt", prompt)
        if wrong := uncounted(self.config):
            raise ValueError("; ".join(wrong))
        T, longest = prompt.shape[-1], self.config.max_length
        x = self.encoder.embedding(prompt, dropout_key=None)
        context = self._context(jnp.arange(T))
        layers, x = self.encoder.stack.prefill(x, max_length=longest, **context)
        return DecoderState(jnp.int32(T), layers), self._scores(x[..., -1:, :])

    def step(
        self, state: DecoderState, token: Int[Array, "*B"]
    ) -> tuple[DecoderState, Float[Array, "*B classes"]]:
        """(state, scores of the next token) after one more token, equal to those of all at once.
        Past `max_length` tokens the scores are NaN."""
        if not isinstance(state, DecoderState):
            raise TypeError(f"state: expected that of `prefill`, got {type(state).__name__}")
        check_integers("token", token)
        self._check("token", token[..., None])
        at = state.length
        x = self.encoder.embedding(token[..., None], dropout_key=None, start=at)
        layers, x = self.encoder.stack.step(state.layers, x, **self._context(at[None]))
        scores = jnp.where(at < self.config.max_length, self._scores(x), jnp.nan)
        return DecoderState(at + 1, layers), scores

    def generate(
        self,
        prompt: Int[Array, "*B T"],
        steps: int,
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: Array | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Int[Array, "*B T+{steps}"]:
        """The prompt and `steps` tokens after it, each drawn by `sample` from the scores so far;
        compiled as one program for each shape, setting and shortest prompt. Prompts with `lengths`
        below T (numbers, not traced) are continued after their own last token, up to T + `steps`
        tokens like the others.

        Raises what `prefill` and `sample` raise, and ValueError if it would be longer than
        `max_length`, for lengths that do not fit, or for classes that are not the vocabulary;
        TypeError for traced lengths.
        """
        classes, vocab_size = self.config.classes, self.config.vocab_size
        if classes != vocab_size:  # class c need not be token c, so it cannot be fed back as one
            raise ValueError(
                f"classes: expected vocab_size={vocab_size} to draw tokens from, got {classes}; "
                "train on the tokens themselves (in experiments: objective='causal'), or use "
                "prefill and step with a token for each class"
            )
        check_count("steps", steps, least=0)
        steps = int(steps)
        self._check("prompt", prompt, steps)
        check_sampling(classes, key, temperature, top_k, top_p)
        settings = (("temperature", temperature), ("top_k", top_k), ("top_p", top_p))
        lengths, common = _own_lengths(prompt, lengths)
        return _generated(*nnx.split(self), prompt, lengths, key, (common, steps), settings)

    def _context(self, positions: Int[Array, " T"]) -> dict:
        """The arguments of every layer besides x."""
        turned = positions if self.config.positions in TURNED else None
        bias = score_bias(self.config, self.encoder.relative, Causal())
        return dict(bias=bias, positions=turned)

    def _scores(self, x: Float[Array, "*B 1 W"]) -> Float[Array, "*B classes"]:
        x = self.encoder.normed(x)
        return self.encoder.head(x, jnp.ones((1,) * x.ndim, bool)[..., 0])[..., 0, :]

    def _check(self, name: str, tokens, more: int = 0) -> None:
        """Raise unless these tokens and `more` after them can be decoded."""
        check_integers(name, tokens)
        if tokens.ndim == 0 or tokens.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one, got {list(tokens.shape)}")
        check_fits(name, tokens)
        longest, T = self.config.max_length, tokens.shape[-1] + more
        if T > longest:
            what = f"{name} and steps" if more else name
            raise ValueError(f"{what}: expected at most max_length={longest} in all, got {T}")


def _own_lengths(prompt, lengths) -> tuple[Int[Array, "*B"], int]:
    """(the length of each prompt, the length of the shortest)."""
    T = prompt.shape[-1]
    if lengths is None:
        return jnp.full(prompt.shape[:-1], T), T
    if isinstance(lengths, jax.core.Tracer):
        raise TypeError(
            "lengths: expected numbers, as the shortest says how many tokens are read at once, got "
            "a traced array; call generate outside of jit, for it is compiled as it is"
        )
    found = np.asarray(lengths)  # a list is numbers too
    if found.shape != prompt.shape[:-1]:
        raise ValueError(
            f"lengths: expected shape {list(prompt.shape[:-1])}, got {list(found.shape)}"
        )
    if not (np.issubdtype(found.dtype, np.integer) and ((found > 0) & (found <= T)).all()):
        raise ValueError(f"lengths: expected integers from 1 to {T}, got {found.tolist()}")
    return jnp.asarray(found), int(found.min(initial=T))


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def _generated(graph, params, prompt, lengths, key, sizes: tuple[int, int], settings):
    common, steps = sizes
    model = nnx.merge(graph, params)
    prompt = prompt.astype(jnp.int32)
    places = jnp.arange(common, prompt.shape[-1] + steps)
    # a key for each position: what a row draws does not depend on how short other rows are
    key = jax.random.key(0) if key is None else key
    keys = jax.vmap(lambda place: jax.random.fold_in(key, place))(places)

    def one(carry, given):
        state, scores = carry
        key, t = given
        drawn = sample(scores, key, **dict(settings))
        token = jnp.where(t < lengths, prompt.at[..., t].get(mode="clip"), drawn)
        return model.step(state, token), token

    start = model.prefill(prompt[..., :common])
    _, tokens = jax.lax.scan(one, start, (keys, places))
    return jnp.concatenate([prompt[..., :common], jnp.moveaxis(tokens, 0, -1)], -1)
