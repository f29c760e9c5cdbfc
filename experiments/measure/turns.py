"""Contenders of one shape and mode: prepared, held against an oracle, timed in turns."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.measure import cost, flops
from experiments.measure.machine import memory_bytes, precision
from experiments.measure.options import Options
from experiments.measure.verdict import Verdict

OURS = "attn"
MODES = ("forward", "forward + backward")
# peers are what people use: one that is off by up to this many times the contract is timed, marked
LENIENCE = 4.0

Row = dict[str, Any]


class Unavailable(Exception):
    """A contender that cannot take part here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Ready:
    """A contender that is compiled: `call(i)` runs it on input set i, `results()` on the first."""

    call: Callable[[int], Any]
    results: Callable[[], Sequence[np.ndarray]] | None  # None: there is nothing to check
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    temporary_bytes: int | None = None
    flops: int | None = None
    implementation: str = ""
    blocks: str = ""


@dataclasses.dataclass(frozen=True)
class Contender:
    """`work` FLOPs and `moved` bytes are what the definition needs, or where that is no one number
    (states, blocks) what its form does; a call does it `per` times."""

    prepare: Callable[[], Ready]
    judge: Callable[[Sequence[np.ndarray]], Verdict] | None
    ours: bool = False
    work: float | None = None
    moved: float | None = None
    per: int = 1


@dataclasses.dataclass(frozen=True)
class Group:
    """What takes turns; `labels` are in each of its rows."""

    labels: Mapping[str, Any]
    contenders: Mapping[str, Contender]


def shapes(
    options: Options,
    batch: int,
    lengths: Sequence[int],
    *,
    dtypes: Sequence[str] = ("float32",),
    heads: Sequence[tuple[int, int]] = ((4, 4),),
    widths: Sequence[int] = (64,),
) -> Iterator[cost.Shape]:
    """A suite's shapes, or those that the options ask for in their place."""
    every = itertools.product(
        options.dtypes or dtypes,
        options.heads or heads,
        options.widths or widths,
        options.lengths or lengths,
    )
    for dtype, (N, K), width, T in every:
        yield cost.Shape(batch, T, N, K, width, dtype)


def measure(group: Group, options: Options, rounds: int | None = None) -> list[Row]:
    """One row for each contender; those that are wrong or cannot take part say why."""
    with precision(group.labels["dtype"]):
        return _measure(group, options, rounds)


def _measure(group: Group, options: Options, rounds: int | None) -> list[Row]:
    ready: dict[str, Ready] = {}
    rows = {name: _row(group, name, one, ready) for name, one in group.contenders.items()}
    timed = cost.time_together(
        {name: one.call for name, one in ready.items()},
        rounds=rounds or options.rounds,
        seconds=options.seconds,
        warm=False,  # to check one is to run it
    )
    for name, timing in timed.items():
        one = group.contenders[name]
        times = vars(timing.of_one(one.per))
        costs = {f.name: getattr(ready[name], f.name) for f in dataclasses.fields(Ready)[2:]}
        rate = lambda amount: None if amount is None else 1e3 * amount / times["minimum"]
        rows[name] |= times | costs | {"work": one.work, "bytes_per_second": rate(one.moved)}
    return list(rows.values())


def _row(group: Group, name: str, one: Contender, ready: dict[str, Ready]) -> Row:
    """The row before timing; a contender that may be timed is put into `ready`."""
    row = {**group.labels, "contender": name, "why": "", "mark": "", "error": None}
    try:
        prepared = one.prepare()
        verdict = one.judge(prepared.results()) if one.judge else Verdict(0.0, "")
    except (Unavailable, NotImplementedError) as error:
        return row | {"why": f"skipped: {_first_line(error)}"}
    except Exception as error:  # one that breaks must not stop the others
        return row | {"why": f"failed: {type(error).__name__}: {_first_line(error)}"}
    # strict JSON has no word for the infinite error of a result that is not finite; `why` tells it
    row["error"] = verdict.error if one.judge and math.isfinite(verdict.error) else None
    if verdict.error > (1.0 if one.ours else LENIENCE):
        return row | {"why": f"wrong, so not timed: {verdict.what}"}
    ready[name] = prepared
    return row | {"mark": f"outside the contract: {verdict.what}" if verdict.error > 1 else ""}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def compiled(
    function: Callable, inputs: Sequence[tuple], mode: str, extra: Any = (), **facts: str
) -> Ready:
    """`function(q, k, v, extra)` compiled for (q, k, v, gradient of the output); gradients are
    those of q, k and v. Raises Unavailable if it would take half of the machine's memory."""

    def both(q, k, v, g, extra):
        return cost.forward_backward(lambda q, k, v: function(q, k, v, extra))(q, k, v, g)

    return _compiled(function, both, inputs, mode, extra, **facts)


def compiled_with_gates(
    function: Callable, inputs: Sequence[tuple], mode: str, extra: dict[str, jax.Array]
) -> Ready:
    """`compiled`, whose gradients are also those of `extra`, after those of q, k and v."""

    def both(q, k, v, g, extra):
        return cost.forward_backward(function)(q, k, v, extra, g)

    return _compiled(function, both, inputs, mode, extra)


def _compiled(function, both, inputs, mode, extra, **facts) -> Ready:
    if mode == MODES[0]:
        run, inputs = function, [(*x[:3], extra) for x in inputs]
    else:
        run, inputs = both, [(*x, extra) for x in inputs]
    program = cost.build(run, *inputs[0])
    if program.peak_bytes > memory_bytes() / 2:
        raise Unavailable(f"it would hold {program.peak_bytes / 1e9:.1f} GB")
    found = flops.counted(program.jaxpr)
    return Ready(
        cost.Finished(program.call, inputs),
        lambda: [np.asarray(x) for x in jax.tree.leaves(program.call(*inputs[0]))],
        program.compile_seconds,
        program.peak_bytes,
        program.temporary_bytes,
        None if found.unknown else found.flops,
        **facts,
    )
