"""The next token from scores: the likeliest, or one drawn from the likeliest few."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats
from attn._settings import is_integer, is_number
from attn._varying import vary
from attn.nn.keys import check_key

State = TypeVar("State")


def sample(
    scores: Float[Array, "*B V"],
    key: Array | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "*B"]:
    """A token drawn from softmax(scores / temperature) for each row; at temperature 0 the
    likeliest, without a key.

    `top_k` keeps the k likeliest (Fan et al. 2018, arXiv:1805.04833), `top_p` the fewest of those
    whose probabilities sum to at least p (nucleus sampling, Holtzman et al. 2019,
    arXiv:1904.09751); ties go to the earlier. Infinite scores share all probability. A row that
    holds NaN, or nothing above -inf, gives -1, which is no token. Raises ValueError for settings
    outside their range, for a missing key and for scores of no token, TypeError for what is not an
    array and for a seed in place of a key.
    """
    check_floats(scores=scores)
    if scores.shape[-1:] in ((), (0,)):
        raise ValueError(f"scores: expected [*B, V] of V >= 1 tokens, got {list(scores.shape)}")
    check_sampling(scores.shape[-1], key, temperature, top_k, top_p)
    wide = scores.astype(jnp.float32)
    top = wide.max(-1, keepdims=True, initial=-jnp.inf)
    broken = jnp.isnan(scores).any(-1) | (top == -jnp.inf)[..., 0]
    if temperature == 0:
        return jnp.where(broken, -1, scores.argmax(-1)).astype(jnp.int32)
    # the largest becomes 0: divided by a small temperature, others would be as infinite as it
    largest = wide == top  # inf - inf, even where it is not used, stops jax.debug_nans
    below = jnp.where(largest, 0, wide - jnp.where(largest, 0, top))
    temperature = float(temperature)  # jax has no room for a large int
    below = jnp.where(below == 0, 0, below / temperature)
    shares = top_p is not None and top_p < 1  # sums of many small ones round to 1 before the last
    if top_k is None and not shares:  # not sorted: on a CPU that takes 10 times as long as the draw
        return jnp.where(broken, -1, jax.random.categorical(key, below)).astype(jnp.int32)
    kept, tokens = jax.lax.top_k(below, scores.shape[-1] if top_k is None else top_k)
    if shares:
        p = jax.nn.softmax(kept)
        kept = jnp.where(jnp.cumsum(p, -1) - p < top_p, kept, -jnp.inf)
    drawn = jax.random.categorical(key, kept)
    token = jnp.take_along_axis(tokens, drawn[..., None], axis=-1)[..., 0]
    return jnp.where(broken, -1, token)


def greedy(
    step: Callable[[State, Int[Array, "*B"]], tuple[State, Float[Array, "*B V"]]],
    state: State,
    scores: Float[Array, "*B V"],
    steps: int,
) -> Int[Array, "*B steps"]:
    """`steps` tokens, each the likeliest after those before it, from the state and scores after the
    start token. `steps` - 1 calls of `step`."""

    def one(carry, _):
        state, scores = carry
        token = sample(scores, temperature=0.0)
        return step(state, token), token

    start = vary((state, scores))
    (_, scores), tokens = jax.lax.scan(one, start, None, length=steps - 1)
    last = sample(scores, temperature=0.0)
    return jnp.moveaxis(jnp.concatenate([tokens, last[None]]), 0, -1)


def check_sampling(vocab_size: int, key, temperature, top_k, top_p) -> None:
    """Raise what `sample` raises for its settings."""
    number = lambda x: is_number(x) and math.isfinite(x)
    # one that float32 does not hold would divide -inf to NaN
    if not (number(temperature) and 0 <= temperature <= 1e30):
        raise ValueError(f"temperature: expected a number from 0 to 1e30, got {temperature!r}")
    if temperature > 0 and key is None:
        raise ValueError("key: expected a random key at a temperature above 0, got None")
    if key is not None:
        check_key(key)
    if top_k is not None and not (is_integer(top_k) and 1 <= top_k <= vocab_size):
        raise ValueError(f"top_k: expected 1 to {vocab_size}, the vocabulary, got {top_k!r}")
    if top_p is not None and not (number(top_p) and 0 < top_p <= 1):
        raise ValueError(f"top_p: expected a number in (0, 1], got {top_p!r}")
