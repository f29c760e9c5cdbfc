"""The checks behind docs/guarantees.md: each takes a mechanism, and raises BrokenLaw if it fails or
NotImplementedError if the mechanism refuses."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attn.biases import Bias
from attn.masks import FULL, Causal, Padding, Segments
from attn.mechanism import Mechanism
from attn.testing import runs
from attn.testing.cases import base_mask, inputs, joined_mask, widen
from attn.testing.contract import BrokenLaw, assert_close, assert_same_bits, rms
from attn.testing.trying import compare, error_of, expect, with_gradients

TINY = {"T": 9, "S": 9, "H": 4, "D": 3}  # one token more than the blocks of most examples
FAR = {**TINY, "T": 600, "S": 600, "batch": (1,), "N": 2, "K": 1}  # longer than a short sequence
STEP, SECOND = 1e-5, 1e-6  # of finite differences; relative error of a derivative


def _equals_definition(mechanism, mask, **shape):
    """(call, arrays, out), after checking `out` against the reference in float64."""
    arrays = inputs(mechanism, **{**TINY, **shape})
    call = jax.jit(lambda q, k, v, learned: mechanism(q, k, v, mask=mask, **learned))
    out = call(*arrays)
    assert_close(out, _definition(mechanism, arrays, mask), dtype=out.dtype, **_room(mechanism))
    return call, arrays, out


def _definition(mechanism, arrays, mask, **options):
    with jax.enable_x64(True):
        q, k, v, learned = widen(arrays)
        define = jax.jit(functools.partial(mechanism.reference, **options))
        return np.asarray(define(q, k, v, mask=mask, **learned))


def _room(mechanism):
    return {"what": "output", "room": mechanism.room}


def causal(mechanism):
    call, arrays, out = _equals_definition(mechanism, Causal())
    gates = mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=TINY["H"])
    for what, factor in (("x1e8", 1e8), ("NaN", jnp.nan)):
        spoil = lambda x: x.at[:, 4:].multiply(factor)
        *qkv, learned = arrays
        learned = {name: spoil(x) if name in gates else x for name, x in learned.items()}
        again = call(*map(spoil, qkv), learned)
        assert_same_bits(again[:, :4], out[:, :4], what=f"the future after 3 replaced ({what})")


def bidirectional(mechanism):
    _equals_definition(mechanism, FULL)


def cross(mechanism):
    _equals_definition(mechanism, base_mask(mechanism), T=5)


def padding(mechanism):
    mask = base_mask(mechanism) & Padding(jnp.array([5, 9], jnp.int32))
    call, (q, k, v, learned), _ = _equals_definition(mechanism, mask)
    hidden = (np.arange(9) >= np.array([[5], [9]]))[..., None, None]
    fill = lambda x, value: jnp.where(hidden, value, x)
    dirty = call(q, fill(k, jnp.nan), fill(v, jnp.inf), learned)
    clean = call(q, fill(k, 0), fill(v, 0), learned)
    assert_same_bits(dirty, clean, what="NaN and Inf in padding")


def segments(mechanism):
    ids = jnp.broadcast_to(jnp.array([0, 0, 0, 1, 1, 1, 1, 0, 0], jnp.int32), (2, 9))
    mask = base_mask(mechanism) & Segments(ids, ids)
    call, (*qkv, learned), out = _equals_definition(mechanism, mask)
    dirty = call(*(jnp.where((ids == 1)[..., None, None], jnp.nan, x) for x in qkv), learned)
    own = np.asarray(ids == 0)
    assert_same_bits(dirty[own], out[own], what="document 0 when document 1 is NaN")


def bias(mechanism):
    values = np.random.default_rng(0).normal(size=(1, 4, TINY["T"], TINY["S"]))
    _equals(mechanism, base_mask(mechanism), bias=jnp.asarray(values, jnp.float32))


def _equals(mechanism, mask, *, dtype=jnp.float32, bias=None, scales=(1.0,)):
    """Check the output and all gradients against the reference's in float64."""
    run = jax.jit(with_gradients(mechanism))
    for scale in scales:
        arrays = inputs(mechanism, dtype=dtype, scale=scale, **TINY)
        arrays = widen(arrays) if dtype == jnp.float64 else arrays
        what = f"{jnp.dtype(dtype).name}, logit scale {scale:g}"
        compare(mechanism, run, arrays, mask, bias, dtype=dtype, what=what, jit_reference=True)


def dropout(mechanism):
    arrays = inputs(mechanism, **TINY)
    *qkv, learned = arrays
    mask, key = base_mask(mechanism), jax.random.key(5)
    call = lambda m: jax.jit(lambda *qkv: m(*qkv, mask=mask, dropout_key=key, **learned))(*qkv)
    try:
        dropping = dataclasses.replace(mechanism, dropout_rate=0.4)
    except TypeError as error:  # no such field: nor may the key be ignored
        unused = error_of(lambda: call(mechanism))
        expect((TypeError, ValueError), unused, "dropout_key", "a dropout_key")
        raise NotImplementedError(str(error)) from error
    out = call(dropping)
    want = _definition(dropping, arrays, mask, dropout_key=key)  # it drops the same weights
    assert_close(out, want, dtype=out.dtype, **_room(mechanism))
    still = call(dataclasses.replace(mechanism, dropout_rate=0.0))
    if (np.asarray(out) == np.asarray(still)).all():
        raise BrokenLaw("nothing is dropped at a rate of 0.4")


def grouped_heads(mechanism):
    _equals_definition(mechanism, base_mask(mechanism), K=1)
    call = jax.jit(lambda q, k, v, learned, mask: mechanism(q, k, v, mask=mask, **learned))
    arrays = inputs(mechanism, **TINY)
    runs.grouped_equals_repeated(mechanism, call, arrays, base_mask(mechanism))


def decode(mechanism):
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6, "max_length": 11}
    mechanism.init_state((2,), **sizes)
    runs.steps_equal_parallel(mechanism)


def weights(mechanism):
    mask = base_mask(mechanism)
    runs.weights_times_values(mechanism, inputs(mechanism, **TINY), mask, what="unmasked")


def in_dtype(name):
    def check(mechanism):
        with jax.enable_x64(name == "float64"):
            _equals(mechanism, base_mask(mechanism), dtype=jnp.dtype(name))

    return check


def gradient(mechanism):
    mask = joined_mask(mechanism, T=TINY["T"], S=TINY["S"])
    _equals(mechanism, mask, scales=(1.0, 8.0))


def second_order(mechanism):
    """Check the gradient's derivative along one direction, by both modes in float64, against
    central differences; return which hold. In the form with loops, if any."""
    looped = [m for m in type(mechanism).examples() if getattr(m, "block", None)]
    mechanism = looped[0] if looped else mechanism
    with jax.enable_x64(True):
        arrays, along = (widen(inputs(mechanism, seed=seed, **TINY)) for seed in (0, 5))
        slope = lambda x: with_gradients(mechanism)(x, base_mask(mechanism), None)[1][0]
        moved = lambda step: jax.tree.map(lambda x, d: x + step * d, arrays, along)
        far, held = widen(inputs(mechanism, **FAR)), []
        for way, derivative in {"forward": _forward, "reverse": _reverse}.items():
            both = functools.partial(derivative, slope)
            jitted = jax.jit(both)
            try:
                _, got = jitted(arrays, along)
                if not looped:  # a short sequence does without loops, which refuse when traced
                    jax.eval_shape(both, far, far)
            except (TypeError, ValueError) as error:
                if "forward-mode" in str(error) or "Reverse-mode" in str(error):
                    continue
                raise
            ahead, behind = (jitted(moved(step), along)[0] for step in (STEP, -STEP))
            want = jax.tree.map(lambda a, b: (a - b) / (2 * STEP), ahead, behind)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                if not rms(a - b) <= SECOND * max(rms(b), SECOND):
                    raise BrokenLaw(f"{way}: off by {rms(a - b):.3g} of {rms(b):.3g}")
            held.append(way)
    if not held:
        raise NotImplementedError("second order")
    return "holds" if len(held) == 2 else held[0]


def _forward(slope, x, along):
    """The gradient and its derivative along a direction, from one compiled program."""
    return jax.jvp(slope, (x,), (along,))


def _reverse(slope, x, along):
    def inner(x):
        gradient = slope(x)
        return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, along))), gradient

    derivative, gradient = jax.grad(inner, has_aux=True)(x)
    return gradient, derivative


@dataclasses.dataclass(frozen=True)
class Column:
    """A check, the word that its refusal must contain, and the term that, if in `honours`, may not
    be refused."""

    check: Callable[[Mechanism], str | None]
    names: str
    term: type | None = None


COLUMNS = {
    "causal": Column(causal, "Causal", Causal),
    "bidirectional": Column(bidirectional, "Causal"),
    "cross": Column(cross, "length"),
    "padding": Column(padding, "Padding", Padding),
    "segments": Column(segments, "Segments", Segments),
    "bias": Column(bias, "bias", Bias),
    "dropout": Column(dropout, "dropout_rate"),
    "grouped heads": Column(grouped_heads, "head"),
    "decode": Column(decode, "decode"),
    "weights": Column(weights, "matrix"),
    "bfloat16": Column(in_dtype("bfloat16"), "bfloat16"),
    "float16": Column(in_dtype("float16"), "float16"),
    "float64": Column(in_dtype("float64"), "float64"),
    "gradient": Column(gradient, "gradient"),
    "second order": Column(second_order, "second order"),
}
