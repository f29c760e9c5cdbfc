"""The law of dropped weights: reproducible, fair to every row and head, right on average."""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np

from attn.masks import FULL
from attn.mechanism import Mechanism
from attn.testing.cases import SHAPE, inputs, masks_for
from attn.testing.contract import BrokenLaw, assert_same_bits
from attn.testing.trying import compare, holds_no_square, precise, with_gradients

RATE, DRAWS = 0.4, 64


def drops_fairly(mechanism: Mechanism) -> None:
    """12. If `dropout_rate` is a field: a key decides what is dropped, in every form and in the
    gradients; each batch row and head drops its own weights; the mean over keys is the output
    without dropout; without a key nothing is dropped; rates outside [0, 1) are refused."""
    if "dropout_rate" not in {field.name for field in dataclasses.fields(mechanism)}:
        return
    at_rate = functools.partial(dataclasses.replace, mechanism)
    _rates_are_checked(at_rate)
    _memory_stays_linear(at_rate(dropout_rate=RATE))
    dropping, still = at_rate(dropout_rate=RATE), at_rate(dropout_rate=0.0)
    with precise():
        _a_key_decides(dropping)
        _rows_and_heads_drop_their_own(dropping)
        _the_mean_stays(dropping, still)


def _rates_are_checked(at_rate):
    for rate in (1.0, -0.1, float("nan")):
        try:
            at_rate(dropout_rate=rate)
        except ValueError:
            continue
        raise BrokenLaw(f"dropout_rate={rate}: expected ValueError, accepted without a word")


def _memory_stays_linear(dropping):
    if not dropping.linear_memory:
        return
    T = 4096
    arrays = inputs(dropping, batch=(1,), T=T, S=T, N=2, K=1, H=8, D=8)
    run = with_gradients(functools.partial(dropping, dropout_key=jax.random.key(0)))
    holds_no_square(run, (arrays, FULL, None), T, what="dropout")


def _a_key_decides(dropping):
    shape = {"T": 19, "S": 23}
    arrays = inputs(dropping, **shape)
    named = masks_for(dropping, **shape)
    mask, key = named.get("all joined", FULL), jax.random.key(5)
    run = jax.jit(with_gradients(functools.partial(dropping, dropout_key=key)))
    again = jax.tree.leaves(run(arrays, mask, None))
    for a, b in zip(again, jax.tree.leaves(run(arrays, mask, None))):
        assert_same_bits(a, b, what="the same key twice")
    # the definition drops the same weights: nothing else would agree to rounding
    definition = types.SimpleNamespace(
        reference=functools.partial(dropping.reference, dropout_key=key), room=dropping.room
    )
    what = {"what": "dropout with one key", "dtype": jnp.float32, "jit_reference": True}
    compare(definition, run, arrays, mask, None, **what)
    q, k, v, learned = arrays
    other = jax.jit(dropping)(q, k, v, mask=mask, dropout_key=jax.random.key(6), **learned)
    if (np.asarray(other) == np.asarray(again[0])).all():
        raise BrokenLaw("another key drops the same weights")


def _rows_and_heads_drop_their_own(dropping):
    q, k, v, learned = inputs(dropping)
    copies = lambda x: jnp.broadcast_to(x[:1, :, :1], x.shape)  # every row and head the same
    call, key = jax.jit(dropping), jax.random.key(5)
    out = np.asarray(call(copies(q), copies(k), copies(v), dropout_key=key, **learned))
    if (out[0] == out[1]).all():
        raise BrokenLaw("two equal batch rows drop the same weights")
    for n, m in itertools.combinations(range(SHAPE["N"]), 2):
        if (out[:, :, n] == out[:, :, m]).all():
            raise BrokenLaw(f"equal heads {n} and {m} drop the same weights")


def _the_mean_stays(dropping, still):
    q, k, v, learned = inputs(dropping)
    want = jax.jit(still)(q, k, v, **learned)
    without = jax.jit(dropping)(q, k, v, **learned)
    assert_same_bits(without, want, what="rate > 0 without a key")
    draw = lambda key: dropping(q, k, v, dropout_key=key, **learned)
    outs = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), DRAWS)))
    deviation = outs.std(0, ddof=1) / np.sqrt(DRAWS)
    if not (deviation > 0).any():
        raise BrokenLaw(f"nothing is dropped in {DRAWS} draws at rate {RATE}")
    off = np.abs(outs.mean(0) - np.asarray(want))
    errors = off / (deviation + 1e-5)
    if errors.max() > 5:
        raise BrokenLaw(
            f"the mean of {DRAWS} draws is {errors.max():.3g} standard errors from the output "
            "without dropout, allowed 5"
        )
