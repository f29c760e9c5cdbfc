"""FLOPs of the matrix products and convolutions of a function, read from its jaxpr, and how many
steps of its loops wait for each other.

Scan bodies are multiplied by their length, loops by their trips, and of a branch the dearest side
counts. XLA's `cost_analysis` counts a loop's body once. Integers that are known at trace time
(loop counters, tables of trip counts) are followed, so a loop whose length is read from a constant
table, as in `attn/_loops.py`, is counted exactly; they are computed only when one is asked for.
What cannot be known is named. What no output needs is not counted: a compiler leaves it out.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from experiments.measure.jaxprs import close, has_loop, jaxprs, used

# the one jaxpr inside runs exactly once, on the equation's own inputs
CALLS = ("jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")
COSTLY = (
    *("cholesky", "eigh", "fft", "geqrf", "householder_product", "lu", "qr", "ragged_dot"),
    *("ragged_dot_general", "svd", "triangular_solve"),
)
LARGEST = 2**16  # elements of an integer array that is worth following

# for each variable what computes its value, or None where that is not known at trace time
Known = list[Callable[[], Any] | None]
Walked = tuple[int, int, Known]  # FLOPs, steps, outputs


@dataclasses.dataclass(frozen=True)
class Count:
    """`flops` is exact if `unknown` is empty, else a lower bound that leaves out what it names.

    `steps` is the longest chain of loop steps of which each needs the one before it: a loop that
    carries nothing from step to step adds that of one step, a triangular system its rows, any
    other primitive (a product, a sum, a sort) nothing.
    """

    flops: int
    steps: int = 0
    unknown: tuple[str, ...] = ()


def count(function: Callable, *arguments: Any) -> Count:
    """FLOPs of one call (a product of [m, k] and [k, n] is 2 m k n); arguments may be shapes."""
    return counted(jax.make_jaxpr(function)(*arguments))


def counted(closed: ClosedJaxpr) -> Count:
    """The same of what was traced before."""
    unknown: set[str] = set()
    flops, steps, _ = _walk(closed, [None] * len(closed.jaxpr.invars), unknown)
    return Count(flops, steps, tuple(sorted(unknown)))


def _walk(jaxpr: Jaxpr | ClosedJaxpr, known: Known, unknown: set[str]) -> Walked:
    """FLOPs, steps, and the outputs as far as they are known."""
    consts = []
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr, consts = jaxpr.jaxpr, jaxpr.consts
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(_small, consts), *known]))
    read = lambda x: _small(x.val) if isinstance(x, Literal) else env.get(x)
    total, after = 0, {}  # after how many steps each variable is there
    for eqn in used(jaxpr):
        flops, steps, outs = _equation(eqn, [read(x) for x in eqn.invars], unknown)
        total += flops
        steps += max((after.get(x, 0) for x in eqn.invars if not isinstance(x, Literal)), default=0)
        env.update(zip(eqn.outvars, outs))
        after.update(dict.fromkeys(eqn.outvars, steps))
    return total, max(after.values(), default=0), [read(x) for x in jaxpr.outvars]


def _equation(eqn: JaxprEqn, known: Known, unknown: set[str]) -> Walked:
    name = eqn.primitive.name
    nothing = [None] * len(eqn.outvars)
    if name in RULES:
        return RULES[name](eqn, known, unknown)
    if name in COSTLY:
        unknown.add(name)
        return 0, eqn.invars[0].aval.shape[-1] if name == "triangular_solve" else 0, nothing
    if inner := jaxprs(eqn):
        if name in CALLS and len(inner) == 1:
            return _walk(inner[0], known, unknown)
        # scatter, sort, reduce: a scalar function without products is nothing to count
        blank = [_walk(x, [None] * len(x.jaxpr.invars), unknown)[0] for x in map(close, inner)]
        if any(blank):
            unknown.add(name)
        return 0, 0, nothing
    known_inside = all(x is not None for x in known) and (known or name == "iota")
    if known_inside and all(_followed(x.aval) for x in eqn.outvars):
        return 0, 0, _computed(eqn, known)
    return 0, 0, nothing


def _computed(eqn: JaxprEqn, known: Known) -> Known:
    @functools.cache
    def outs():
        out = eqn.primitive.bind(*(x() for x in known), **eqn.params)
        return out if eqn.primitive.multiple_results else [out]

    return [lambda n=n: outs()[n] for n in range(len(eqn.outvars))]


def _value(x: Any) -> Callable[[], Any]:
    return lambda: x


def _dot(eqn, known, unknown):
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shared = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
    return 2 * math.prod(eqn.outvars[0].aval.shape) * shared, 0, [None]


def _conv(eqn, known, unknown):
    kernel = eqn.invars[1].aval.shape
    features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // features, 0, [None]


def _scan(eqn, known, unknown):
    body, length = eqn.params["jaxpr"], eqn.params["length"]
    consts, carry = _of_scan(eqn.params)
    blank = [None] * len(eqn.outvars)
    if not has_loop(body):
        flops, steps, _ = _walk(body, [None] * len(known), unknown)
        return length * flops, length * max(1, steps) if carry else steps, blank
    # a loop inside may take another number of trips at each step: take the steps one by one
    fixed, state, stacked = known[:consts], known[consts : consts + carry], known[consts + carry :]
    total, chain = 0, []
    for step in range(length):
        at = length - 1 - step if eqn.params["reverse"] else step
        slices = [None if x is None else _value(x()[at]) for x in stacked]
        flops, steps, outs = _walk(body, [*fixed, *state, *slices], unknown)
        # now, for thousands of steps would be as many calls deep
        total, state = total + flops, [None if x is None else _value(x()) for x in outs[:carry]]
        chain.append(max(1, steps) if carry else steps)
    return total, sum(chain) if carry else max(chain, default=0), [*state, *blank[carry:]]


def _of_scan(params: dict[str, Any]) -> tuple[int, int]:
    """How many of its arguments are constants and how many are carried."""
    if "ft_in" in params:  # from jax 0.11 on: a tree of constants, carry and slices
        consts, carry, _ = map(len, params["ft_in"].unpack())
        return consts, carry
    return params["num_consts"], params["num_carry"]


def _while(eqn, known, unknown):
    trips = _trips(eqn, known)
    n = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    body = eqn.params["body_jaxpr"]
    consts = known[eqn.params["cond_nconsts"] : n]
    missing = set()
    flops, steps, _ = _walk(body, [*consts, *[None] * (len(known) - n)], missing)
    if trips is None and (flops or missing):
        unknown.add("while loop whose length depends on data")
        return 0, 0, [None] * len(eqn.outvars)
    if trips:
        unknown |= missing
    trips = trips or 0
    return flops * trips, max(1, steps) * trips, [None] * len(eqn.outvars)


def _trips(eqn, known) -> int | None:
    """The trips of a `fori_loop`: while carry[a] < carry[b], with 1 added to carry[a] each time."""
    test, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    skip, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if len(test.eqns) != 1 or test.eqns[0].primitive.name != "lt":
        return None
    counter, limit = test.eqns[0].invars
    if counter not in test.invars[skip:] or test.outvars != test.eqns[0].outvars:
        return None
    a = test.invars.index(counter) - skip
    steps = [e for e in body.eqns if e.outvars[0] is body.outvars[a]]
    if not steps or steps[0].primitive.name != "add":
        return None
    left, right = steps[0].invars
    if left is not body.invars[consts + a] or not isinstance(right, Literal) or right.val != 1:
        return None
    if isinstance(limit, Literal):
        stop = _value(limit.val)
    else:
        b = test.invars.index(limit) - skip  # below 0: a constant of the test
        if b >= 0 and body.outvars[b] is not body.invars[consts + b]:
            return None
        stop = known[skip + b if b < 0 else skip + consts + b]
    start = known[skip + consts + a]
    return None if start is None or stop is None else max(0, int(stop()) - int(start()))


def _cond(eqn, known, unknown):
    branches = eqn.params["branches"]
    if known[0] is not None:
        return _walk(branches[min(max(int(known[0]()), 0), len(branches) - 1)], known[1:], unknown)
    walked = [_walk(b, known[1:], unknown) for b in branches]
    flops, steps = (max(w[n] for w in walked) for n in (0, 1))
    return flops, steps, [None] * len(eqn.outvars)


def _shard_map(eqn, known, unknown):
    """What every device does."""
    inside = eqn.params["jaxpr"]
    flops, steps, _ = _walk(inside, [None] * len(close(inside).jaxpr.invars), unknown)
    return flops * eqn.params["mesh"].size, steps, [None] * len(eqn.outvars)


def _same(eqn, known, unknown):
    return 0, 0, known


def _linear_solve(eqn, known, unknown):
    """Of its four functions, the one that solves."""
    solve = eqn.params["jaxprs"].solve
    return _walk(solve, [None] * len(solve.jaxpr.invars), unknown)


RULES = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "custom_linear_solve": _linear_solve,
    # they say over which devices a value varies, and exist under shard_map only
    "pvary": _same,
    "pcast": _same,
}


def _followed(aval: Any) -> bool:
    return aval.size <= LARGEST and getattr(aval.dtype, "kind", "") in "iub"


def _small(x: Any) -> Callable[[], Any] | None:
    """What gives x if it is an integer that is followed, else None."""
    return _value(x) if x is not None and _followed(jax.typeof(x)) else None
