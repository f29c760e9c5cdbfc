"""python -m experiments.benchmark --workdir=DIR [--suite=softmax,window,linear,loop]
    [--lengths=512,2048,4096] [--against=jax.nn,torch] [--rounds=12]

Times our primitives and their peers in turns, in one process on the same inputs, forward and
forward + backward; what is not the float64 oracle's result at the timed shape is not timed. Writes
DIR/benchmark.json, benchmark.md and benchmark.html. `loop` measures what the train loop adds to
the jitted step. Times depend on the machine and on what else it does: trust the ratios.
"""

import dataclasses
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags
from rich.console import Console

from experiments import cli, records
from experiments.errors import ConfigError, RunDirectoryError, nearest
from experiments.measure import cost, flops, peers
from experiments.measure.suites import Suite, suites
from experiments.report import benchmark as benchmark_page

OURS = "attn"
MODES = ("forward", "forward + backward")


@dataclasses.dataclass(frozen=True)
class Ready:
    """A contender that is compiled: `call(i)` runs it on input set i, `results()` on the first."""

    call: Callable[[int], Any]
    results: Callable[[], tuple[np.ndarray, ...]]
    compile_seconds: float | None
    peak_bytes: int | None
    temporary_bytes: int | None
    flops: int | None


def measure(suite: Suite, T: int, mode: str, names: Sequence[str], rounds: int) -> Iterator[dict]:
    """One row for each contender; those that are wrong or cannot take part say why."""
    shape = cost.Shape(suite.batch, T, 4, 4, 64)
    inputs = shape.inputs()
    oracle = functools.partial(suite.oracle, suite.seen)
    ready, rows = {}, {}
    for name in (OURS, *names):
        row = rows[name] = {"T": T, "mode": mode, "contender": name, "why": ""}
        if T > suite.against.get(name, T):
            row["why"] = f"skipped: not beyond T = {suite.against[name]:,}, for its memory"
            continue
        try:
            one = _prepare(suite, name, shape, mode, inputs)
        except peers.Unavailable as error:
            row["why"] = f"skipped: {error}"
            continue
        if wrong := peers.disagreement(oracle, inputs[0], one.results()):
            row["why"] = f"wrong, so not timed: {wrong}"
            continue
        ready[name] = one
    timed = cost.time_together({n: one.call for n, one in ready.items()}, rounds=rounds)
    for name, row in rows.items():
        if name in timed:
            costs = {f.name: getattr(ready[name], f.name) for f in dataclasses.fields(Ready)[2:]}
            row |= {**dataclasses.asdict(timed[name]), **costs}
        yield row


def _prepare(suite: Suite, name: str, shape: cost.Shape, mode: str, inputs: list) -> Ready:
    backward = mode == MODES[1]
    if name == "torch":
        call = peers.torch_sdpa(suite.seen, shape.T, backward)
        held = [tuple(map(peers.to_torch, x)) for x in inputs]
        results = lambda: tuple(map(peers.from_torch, call(*held[0])))
        return Ready(lambda r: call(*held[r % len(held)]), results, None, None, None, None)
    if name == OURS:
        attend, arrays = cost.attention(suite.mechanism, shape, suite.mask)
        function = lambda q, k, v: attend(q, k, v, arrays)
    else:
        function = peers.PEERS[name](suite.seen, shape.T)
    if backward:
        function = cost.forward_backward(function)
    inputs = inputs if backward else [x[:3] for x in inputs]
    program = cost.build(function, *inputs[0])
    found = flops.count(function, *inputs[0])
    return Ready(
        cost.finished(program.call, inputs),
        lambda: tuple(map(np.asarray, jax.tree.leaves(program.call(*inputs[0])))),
        program.compile_seconds,
        program.peak_bytes,
        program.temporary_bytes,
        None if found.unknown else found.flops,
    )


def run_suite(
    suite: Suite, lengths: Sequence[int], names: Sequence[str], rounds: int, console: Console
) -> list[dict[str, Any]]:
    rows = []
    for T in lengths:
        for mode in MODES:
            with console.status(f"{suite.title}, T = {T:,}, {mode}"):
                found = list(measure(suite, T, mode, names, rounds))
            rows += found
            console.print(benchmark_page.terminal(f"{suite.title}, T = {T:,}, {mode}", found))
    return rows


def _define(values: flags.FlagValues) -> None:
    known = ",".join((*suites(), "loop"))
    flags.DEFINE_string("workdir", None, "where the results are written", flag_values=values)
    flags.DEFINE_list("suite", known, f"any of {known}", flag_values=values)
    flags.DEFINE_list("lengths", [], "lengths T in place of the suite's own", flag_values=values)
    flags.DEFINE_list("against", [], "peers, by default the suite's own", flag_values=values)
    flags.DEFINE_integer("rounds", 12, "rounds in turns", lower_bound=3, flag_values=values)


def _run(values: flags.FlagValues) -> None:
    known = suites()
    _check(values, known)
    workdir = Path(values.workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"--workdir={workdir}: {error.strerror}") from None
    command = shlex.join(["python", "-m", "experiments.benchmark", *sys.argv[1:]])
    console, found = Console(), {}
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        busy = f"the machine is busy (load {load:.1f} on {cores} cores): these are no measurements"
        console.print(busy, style="yellow", highlight=False)
    for name in values.suite:
        if name == "loop":
            # Flax, Optax and Orbax are read for this suite alone
            from experiments.measure import overhead

            tell = functools.partial(console.print, highlight=False)
            found[name] = overhead.measure(overhead.experiment(), tell=tell)
            console.print(found[name]["note"], style="bold", highlight=False)
            continue
        suite = known[name]
        names = [x for x in suite.against if not values.against or x in values.against]
        lengths = [int(x) for x in values.lengths] or suite.lengths
        rows = run_suite(suite, lengths, names, values.rounds, console)
        found[name] = {"title": suite.title, "batch": suite.batch, "rows": rows}
    environment = records.environment(command) | {"load at start": round(load, 1)}
    path = benchmark_page.write(found, environment, workdir)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


def _check(values: flags.FlagValues, known: dict[str, Suite]) -> None:
    problems = []
    valid = {
        "suite": [*known, "loop"],
        "against": [*{p for s in known.values() for p in s.against}],
    }
    for flag, names in valid.items():
        for name in getattr(values, flag):
            if name not in names:
                problems.append(f"--{flag}={name}: unknown{nearest(name, names)}")
    for length in values.lengths:
        if not length.isdecimal() or not 1 <= int(length) <= 2**20:
            problems.append(f"--lengths={length}: expected a whole number in 1..{2**20:,}")
    if problems:
        raise ConfigError(problems)


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
