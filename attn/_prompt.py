"""Prompts: what every `prefill` begins with, before any work."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn._inputs import check_qkv, check_tokens
from attn._settings import check_count
from attn.biases import ArrayBias, Bias, as_bias
from attn.masks import FULL
from attn.mechanism import Mechanism


def check_prompt(q, k, v, max_length: int) -> None:
    """Refuse what `check_qkv` does, other than one key per query, and more than `max_length`
    tokens, even where a state keeps fewer."""
    check_qkv(q, k, v, FULL)
    check_tokens(q, k)  # `Causal()` would take the last queries of a prompt for its first
    check_count("max_length", max_length, least=k.shape[-3])


def bias_of(bias: Bias | Float[Array, "*#B #N #T #S"] | None, q) -> Bias | None:
    """The part of the whole sequence's bias for the tokens of a prompt: of an array, its first rows
    and columns."""
    bias, T = as_bias(bias), q.shape[-3]
    if not isinstance(bias, ArrayBias) or bias.values.ndim < 2:
        return bias
    return ArrayBias(bias.values[..., :T, :T])


def state_for(mechanism: Mechanism, q, k, v, max_length: int) -> Any:
    """`init_state` for the heads, widths and dtype of q, k and v."""
    sizes = {"num_heads": q.shape[-2], "num_kv_heads": k.shape[-2]}
    sizes |= {"head_dim": q.shape[-1], "value_dim": v.shape[-1], "dtype": jnp.result_type(q)}
    return mechanism.init_state(q.shape[:-3], max_length=max_length, **sizes)


def as_tokens(mechanism: Mechanism, q, k, v, max_length: int, **arrays) -> tuple[Any, Array]:
    """`prefill` as one `step` from the empty state, where a `step` takes any number of tokens."""
    check_prompt(q, k, v, max_length)
    return mechanism.step(state_for(mechanism, q, k, v, max_length), q, k, v, **arrays)
