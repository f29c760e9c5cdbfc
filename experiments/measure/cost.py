"""What a function costs: milliseconds, seconds to compile, peak bytes; and a mechanism's own costs.

Programs to be compared are timed together, in interleaved rounds with rotated inputs, so that a
busy machine slows all of them and no cache serves one input twice in a row.
"""

import dataclasses
import hashlib
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from attn import FULL, Mask, Mechanism
from experiments.measure.machine import on_gpu

ROTATED = 3  # sets of inputs
# milliseconds of a turn on a GPU: to wait for it once takes a tenth of one
TURN = 5.0
MOST = 1024  # calls of one turn


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds of one call over `rounds` rounds; half of them lie in `low`..`high`."""

    minimum: float
    median: float
    low: float
    high: float
    rounds: int

    def of_one(self, n: int) -> Self:
        """That of one of the `n` things that each call does."""
        low, high = self.low / n, self.high / n
        return Timing(self.minimum / n, self.median / n, low, high, self.rounds)


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled function, and the jaxpr that it was compiled from."""

    call: jax.stages.Compiled
    compile_seconds: float
    jaxpr: ClosedJaxpr

    @property
    def temporary_bytes(self) -> int:
        return self.call.memory_analysis().temp_size_in_bytes

    @property
    def peak_bytes(self) -> int:
        """Arguments + outputs - aliased + temporaries."""
        # not its peak_memory_in_bytes, which leaves temporaries out on a CPU
        m = self.call.memory_analysis()
        held = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes
        return held + m.temp_size_in_bytes


Known = dict[tuple, Program]


def build(function: Callable, *arguments: Any, known: Known | None = None) -> Program:
    """Lower and compile `function` for these arguments (or their shapes); jitted if it is not. What
    lowers to the same text as one that is `known` is that program, others become known."""
    # a new wrapper: a function that was jitted before would be lowered from its cache
    jitted = function if hasattr(function, "lower") else jax.jit(lambda *args: function(*args))
    start = time.perf_counter()
    traced = jitted.trace(*arguments)
    lowered = traced.lower()
    compiled = lambda: Program(lowered.compile(), time.perf_counter() - start, traced.jaxpr)
    # under an option of jax's the arrays of a function are handed in: which, the text does not say
    if known is None or "jax.const = true" in (text := lowered.as_text()):
        return compiled()
    # which arguments are used, as the others are not in the text
    used = re.findall(r'loc\("([^"]*)"\)', lowered.as_text(debug_info=True))
    text = "\n".join([*used, text])
    key = hashlib.sha256(text.encode()).digest(), lowered.in_tree, lowered.out_tree
    if key not in known:
        known[key] = compiled()
    return known[key]


def time_together(
    calls: Mapping[str, Callable[[int], Any]],
    *,
    rounds: int = 20,
    seconds: float = 60.0,
    warm: bool = True,
    turn: float | None = None,
) -> dict[str, Timing]:
    """Time `call(round)`, which must come back finished, for each name; one call first to `warm`.

    Stops after `rounds` rounds, or after the first three that end past `seconds`. A turn is one
    call, or of what is `Finished` as many as take `turn` milliseconds: by default 5 on a GPU.
    """
    for call in calls.values() if warm else ():
        call(0)
    turn = (TURN if on_gpu() else 0.0) if turn is None else turn
    times = {name: _times(call, turn) for name, call in calls.items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    names, start = list(calls), time.perf_counter()
    for r in range(rounds if calls else 0):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            took[name].append(_milliseconds(calls[name], r, times[name]) / times[name])
        if r >= 2 and time.perf_counter() - start > seconds:
            break
    return {name: _summary(times) for name, times in took.items()}


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return Timing(min(times), median, low, high, len(times))


@dataclasses.dataclass(frozen=True)
class Finished:
    """What `time_together` takes: `call` on the inputs in turn, one or several `times` one after
    another, and then waiting for the device."""

    call: Callable
    inputs: Sequence[tuple]
    wait: Callable[[Any], Any] = jax.block_until_ready

    def __call__(self, r: int, times: int = 1) -> Any:
        for n in range(r * times, (r + 1) * times):
            out = self.call(*self.inputs[n % len(self.inputs)])
        return self.wait(out)


def _milliseconds(call: Callable, r: int, times: int) -> float:
    start = time.perf_counter()
    call(r, times) if times > 1 else call(r)
    return 1e3 * (time.perf_counter() - start)


def _times(call: Callable, turn: float) -> int:
    """How many calls take `turn` milliseconds."""
    if not turn or not isinstance(call, Finished):
        return 1
    call(0)  # the first may compile
    times = 1
    while times < MOST and (took := _milliseconds(call, 0, times)) < turn:
        times = min(MOST, max(2 * times, math.ceil(times * turn / took)))
    return times


@dataclasses.dataclass(frozen=True)
class Shape:
    """One attention's shape: batch, length, heads, key heads, head width; and its dtype."""

    B: int
    T: int
    N: int
    K: int
    H: int
    dtype: str = "float32"

    def qkvg(self, seed: int) -> tuple[jax.Array, ...]:
        """Unit normal q, k, v, and a gradient of the output."""
        q, kv = (self.B, self.T, self.N, self.H), (self.B, self.T, self.K, self.H)
        keys = jax.random.split(jax.random.key(seed), 4)
        return tuple(jax.random.normal(key, s, self.dtype) for key, s in zip(keys, (q, kv, kv, q)))

    def inputs(self) -> list[tuple[jax.Array, ...]]:
        """Sets of what `qkvg` gives, drawn by NumPy: XLA takes seconds to compile its draws."""
        q, kv = (self.B, self.T, self.N, self.H), (self.B, self.T, self.K, self.H)
        draw = np.random.default_rng(0).standard_normal
        one = lambda shape: jax.device_put(draw(shape, np.float32).astype(self.dtype))
        return [tuple(map(one, (q, kv, kv, q))) for _ in range(ROTATED)]


def forward_backward(function: Callable) -> Callable:
    """(*arguments, gradient of the output) -> the output and the gradient of each argument."""

    def both(*arguments):
        *arguments, g = arguments
        out, pull = jax.vjp(function, *arguments)
        return out, *pull(g.astype(out.dtype))

    return both


def attention(mechanism: Mechanism, shape: Shape, mask: Mask = FULL) -> tuple[Callable, dict]:
    """`attend`, and the arrays for it."""
    return attend(mechanism, mask), arrays(mechanism, shape)


def attend(mechanism: Mechanism, mask: Mask) -> Callable:
    """(q, k, v, arrays) -> out"""
    return lambda q, k, v, more: mechanism(q, k, v, mask=mask, **more)


def arrays(mechanism: Mechanism, shape: Shape) -> dict[str, jax.Array]:
    """The learned arrays as they start, and gates."""
    heads = {"num_heads": shape.N, "num_kv_heads": shape.K, "head_dim": shape.H}
    learned = mechanism.init(jax.random.key(0), **heads, value_dim=shape.H, max_length=shape.T)
    gates = {
        name: _gate(name, (shape.B, shape.T, *x))
        for name, x in mechanism.gate_shapes(**heads).items()
    }
    return learned | gates


def _gate(name: str, shape: tuple[int, ...]) -> jax.Array:
    """As gates arrive: logarithms a little below 0, others in [0, 1]."""
    x = jax.random.uniform(jax.random.key(1), shape)
    return -x / 16 if "log" in name else x
