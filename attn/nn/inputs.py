"""The checks of an encoder's inputs at call time: what it does not accept is refused by name."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn._arrays import check_floats
from attn._axes import aligned
from attn._inputs import check_mask
from attn._integers import check_fits, check_integers, check_lengths
from attn.masks import Mask, Padding
from attn.nn.config import EncoderConfig


def alone(config: EncoderConfig) -> EncoderConfig:
    """For reading one sequence by itself: "dual" is the head of pairs."""
    return dataclasses.replace(config, head="classification") if config.head == "dual" else config


def prepare(
    config: EncoderConfig,
    tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
    mask: Mask,
    lengths: Int[Array, "*B"] | None,
    *,
    name: str = "tokens",
) -> tuple[Int[Array, "*B T"] | Float[Array, "*B T F"], Bool[Array, "*#B L"], Mask]:
    """(tokens with padding set to 0, which of the L layer positions are real, the layers' mask).

    Raises TypeError for wrong types and dtypes, ValueError for wrong shapes, for numbers that do
    not fit and for a mask that would not mean what it says; messages call the tokens `name`.
    """
    F = config.token_width
    check_integers(name, tokens) if F is None else check_floats(**{name: tokens})
    if lengths is not None:
        check_integers("lengths", lengths)
    last = [*([2] if config.head == "dual" else []), "T", *([] if F is None else [F])]
    fits = lambda expected, got: expected in ("T", got)
    if tokens.ndim < len(last) or not all(map(fits, last, tokens.shape[-len(last) :])):
        raise ValueError(f"{name}: expected {['...', *last]}, got {list(tokens.shape)}")
    *batch, T = tokens.shape if F is None else tokens.shape[:-1]
    if config.max_length < T:
        raise ValueError(
            f"{name}: expected at most max_length={config.max_length} in a row, got {T}; "
            "cut them, or build the encoder with a larger max_length"
        )
    if lengths is not None and list(lengths.shape) != batch:
        raise ValueError(f"lengths: expected shape {batch}, got {list(lengths.shape)}")
    check_numbers(tokens, lengths, name=name)
    L = T + (config.pooling == "cls")
    _check_mask(config, mask, L)
    if lengths is None:
        return tokens, jnp.ones((1,) * len(batch) + (L,), bool), mask
    # a narrow integer, or the largest, would wrap at + 1
    lengths = jnp.minimum(jnp.asarray(lengths, jnp.int32), T)
    # whatever stands in the padding, even ids outside the vocabulary, is the same to the layers
    real = jnp.less(*aligned(jnp.arange(T), lengths[..., None]))
    tokens = jnp.where(real if F is None else real[..., None], tokens, 0)
    lengths = lengths + (L - T)
    real = jnp.less(*aligned(jnp.arange(L), lengths[..., None]))
    return tokens, real, mask & Padding(lengths)


def check_numbers(tokens: Array, lengths: Array | None, *, name: str = "tokens") -> None:
    """Raise ValueError for lengths below 0, and for ids and lengths that do not fit in 32 bits,
    while their values are known: `jit` cuts all to 32 bits."""
    check_fits(name, tokens)
    if lengths is not None:
        check_lengths(lengths)


def _check_mask(config: EncoderConfig, mask: Mask, L: int) -> None:
    check_mask(mask)
    if any(isinstance(term, Padding) for term in mask.terms()):
        raise ValueError("mask: padding is given as lengths=, because pooling must know it too")
    if config.pooling != "cls":
        return
    if not mask.static:
        held = sorted({type(term).__name__ for term in mask.terms() if not term.static})
        raise ValueError(
            f"mask: pooling='cls' puts a token at index 0, so the arrays of {', '.join(held)} no "
            "longer fit; use pooling='mean' or 'max'"
        )
    sees = mask.sized(L, L).at(np.zeros(1, int), np.arange(1, L))
    if L > 1 and not sees.any():
        raise ValueError(
            "mask: pooling='cls' puts a token at index 0, and this mask lets index 0 see no other, "
            "so the output would not depend on the tokens; use pooling='mean' or 'max'"
        )
