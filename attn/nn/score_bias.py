"""Positions that are a bias on the scores: ALiBi's slopes, or T5's table, one for all layers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from attn.biases import Alibi, Bias, Relative
from attn.masks import Causal, Mask
from attn.nn.config import EncoderConfig
from attn.nn.keys import fold
from attn.positions import alibi_slopes

T5_BUCKETS = 32


def relative_table(config: EncoderConfig, *, key: Array) -> nnx.Param | None:
    """The learned table [buckets, heads] of positions "t5"; None for others."""
    if config.positions != "t5":
        return None
    draw = jax.nn.initializers.normal(config.width**-0.5)
    return nnx.Param(draw(fold(key, "relative"), (T5_BUCKETS, config.heads), jnp.float32))


def score_bias(config: EncoderConfig, table: nnx.Param | None, mask: Mask) -> Bias | None:
    """The bias that every layer adds to its scores, if any. Under `Causal` all of T5's buckets are
    for keys before the query, as in its decoder; else half of them."""
    if config.positions == "alibi":
        return Alibi(jnp.asarray(alibi_slopes(config.heads)))
    if table is None:
        return None
    causal = mask.take(Causal)[0][0]
    return Relative(table[...], bidirectional=causal is None or causal.offset > 0)
