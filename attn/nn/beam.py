"""Beam search over any step function, with the length penalty of Wu et al. 2016."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats
from attn._settings import check_count, is_integer, is_number
from attn._varying import vary

State = TypeVar("State")


def beam_search(
    step: Callable[[State, Int[Array, "*B W"]], tuple[State, Float[Array, "*B W V"]]],
    state: State,
    scores: Float[Array, "*B W V"],
    *,
    steps: int,
    end: int,
    alpha: float = 0.6,
) -> tuple[Int[Array, "*B W steps"], Float[Array, "*B W"]]:
    """The W best hypotheses of a beam of width W, best first, and their scores.

    `state` and `scores` are those after the start token, the same for each of the W. At each of at
    most `steps` steps, the W likeliest continuations stay; one that ends leaves the beam and
    competes with the others that ended, and finally with those that did not, by

        log P(Y) / ((5 + |Y|) / 6)^alpha

    (arXiv:1609.08144, eq. 14, without coverage), where |Y| counts the `end` token, which also fills
    what follows it, and alpha is from 0 to 4. Width 1 is greedy decoding. If there are fewer than W
    hypotheses, the rest score -inf, as do those whose scores are NaN; infinite scores share all
    probability, as in `sample`. Each leaf of the state has leading axes [*B, W] and is gathered by
    the parent of each hypothesis; a leaf without axes is common to all. One call of `step` fewer
    than `steps`, O(W steps) memory besides the state's.
    Raises ValueError for what does not fit, TypeError for scores that are not floats.
    """
    _check(state, scores, steps, end, alpha)
    steps, end = int(steps), int(end)  # they may be NumPy's
    *batch, width, vocabulary = scores.shape
    rows = (*batch, width)
    # only the first hypothesis is alive so far: the others would be copies of it
    alive = jnp.broadcast_to(jnp.where(jnp.arange(width) == 0, jnp.float32(0), -jnp.inf), rows)
    tokens = jnp.full((*rows, steps), end, jnp.int32)
    ended = (tokens, jnp.full(rows, -jnp.inf, jnp.float32))

    def choose(alive, tokens, ended, scores, t):
        """The W likeliest continuations, and (parent, token) of each."""
        scores = scores.astype(jnp.float32)
        # infinite scores share all probability: inf - inf would make all of the row NaN
        forced = jnp.where(scores == jnp.inf, 0, -jnp.inf)
        scores = jnp.where(scores.max(-1, keepdims=True) == jnp.inf, forced, scores)
        logp = alive[..., None] + jax.nn.log_softmax(scores)
        logp = jnp.where(jnp.isnan(logp), -jnp.inf, logp)
        flat = logp.reshape(*batch, width * vocabulary)
        alive, chosen = jax.lax.top_k(flat, width)
        parent, token = jnp.divmod(chosen, vocabulary)
        tokens = _gather(tokens, parent).at[..., t].set(token)
        done = alive / _penalty(t + 1, alpha)
        ended = _best(ended, (tokens, jnp.where(token == end, done, -jnp.inf)))
        return (jnp.where(token == end, -jnp.inf, alive), tokens, ended), parent, token

    def extend(carry, t):
        kept, state, scores = carry
        kept, parent, token = choose(*kept, scores, t)
        state = jax.tree.map(lambda x: x if jnp.ndim(x) == 0 else _gather(x, parent), state)
        return (kept, *step(state, token)), None

    start = vary(((alive, tokens, ended), state, scores))
    (kept, _, scores), _ = jax.lax.scan(extend, start, jnp.arange(steps - 1))
    (alive, tokens, ended), *_ = choose(*kept, scores, steps - 1)
    tokens, scores = _best(ended, (tokens, alive / _penalty(steps, alpha)))
    # a place without a hypothesis holds no tokens either
    return jnp.where(jnp.isneginf(scores)[..., None], end, tokens), scores


def _penalty(length, alpha) -> Float[Array, ""]:
    return (jnp.asarray(5 + length, jnp.float32) / 6) ** float(alpha)


def _best(one, other):
    """The W best of 2 W, sorted."""
    tokens, scores = (jnp.concatenate(x, axis=len(one[1].shape) - 1) for x in zip(one, other))
    scores, at = jax.lax.top_k(scores, scores.shape[-1] // 2)
    return _gather(tokens, at), scores


def _gather(x, at: Int[Array, "*B W"]):
    """x [*B, W, ...] gathered along its axis W."""
    tail = x.ndim - at.ndim
    return jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * tail), axis=at.ndim - 1)


def _check(state, scores, steps, end, alpha) -> None:
    check_floats(scores=scores)
    if scores.ndim < 2:
        raise ValueError(f"scores: expected axes [..., width, vocabulary], got {scores.shape}")
    rows = scores.shape[:-1]
    for x in jax.tree.leaves(state):
        shape = jnp.shape(x)
        if shape and shape[: len(rows)] != rows:
            raise ValueError(f"state: expected leaves with the axes {rows} in front, got {shape}")
    check_settings(scores.shape[-1], steps, end, alpha)


def check_settings(vocabulary: int, steps, end, alpha) -> None:
    """Raise ValueError for settings that `beam_search` refuses."""
    check_count("steps", steps)
    if not is_integer(end) or not 0 <= end < vocabulary:
        raise ValueError(f"end: expected an id below {vocabulary}, got {end!r}")
    # above 4, float32 does not hold the penalty of 2^30 tokens, and -inf / inf is NaN
    if not is_number(alpha) or not 0 <= alpha <= 4:
        raise ValueError(f"alpha: expected a number from 0 to 4, got {alpha!r}")
