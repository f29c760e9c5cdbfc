"""python -m experiments.benchmark --workdir=DIR
    [--suite=softmax,memory,decode,masks,sharded,window,bigbird,linear,linearized,sparse,content,
             loop]
    [--lengths=512,2048,4096] [--dtypes=float32,bfloat16] [--heads=4/4,8/2] [--widths=64,128]
    [--against=jax.nn,torch] [--rounds=12] [--seconds=30]

Times our primitives and their peers in turns, in one process on the same inputs, forward and
forward + backward; what does not give the float64 oracle's result at the timed shape is not timed,
up to the length that a suite says its oracle can hold; longer shapes are timed as "unjudged".
Writes DIR/benchmark.json, benchmark.md and benchmark.html, again after every suite; a DIR with
suites that are not asked for is refused, the same ones are measured again, and earlier results stay
there as benchmark.1.json and so on. `sharded` runs in a process of its own, and `loop` measures
what the train loop adds to the jitted step. Times depend on the machine and on what else it does:
trust the ratios. --against=COMMIT (any name that git has for one) runs the same suites there and
here in turns and prints both times of ours side by side.
"""

import functools
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli, records, redact
from experiments.errors import ConfigError, Interrupted, RunDirectoryError
from experiments.lock import held
from experiments.measure import commits, machine
from experiments.measure.options import Options, define, parse
from experiments.measure.suites import Suite, all_peers, suites
from experiments.report import benchmark as benchmark_page
from experiments.report.measurements import Row, terminal, title
from experiments.rundir import read_json
from experiments.signals import ending
from experiments.stdout import Console

LOOP = "loop"
SHAPED = ("lengths", "dtypes", "heads", "widths", "rounds", "seconds")  # flags of the other suites
STOPPED = "stopped; what was measured is written"
# what the C library is told of memory, which decides what large arrays cost on a CPU, and what
# XLA and Triton are told on a GPU
TOLD = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "XLA_", "TRITON_F32_DEFAULT")


def run_suite(
    suite: Suite, options: Options, console: Console, peaks: dict[str, float], rows: list[Row]
) -> None:
    """Runs a suite, appending to `rows` so that nothing is lost if it is interrupted."""
    with console.status(suite.title):
        for found in suite.rows(options):
            rows += found
            share(found, peaks)
            console.print(terminal(f"{suite.title}, {title(found[0])}", found))


def share(rows: Iterable[Row], peaks: dict[str, float]) -> None:
    """Adds to each row the share of its dtype's FLOP/s in `peaks` at which the needed work ran."""
    for row in rows:
        if row.get("work") and "minimum" in row:
            peak = machine.peak_of(row["dtype"], peaks)
            row["peak_share"] = 1e3 * row["work"] / row["minimum"] / peak


def run_loop(console: Console) -> dict[str, Any]:
    # Flax, Optax and Orbax are read for this suite alone
    from experiments.measure import overhead

    tell = functools.partial(console.print, highlight=False)
    try:
        found = overhead.measure(overhead.experiment(), tell=tell)
    except Interrupted as stopped:  # which tells of a run that is gone
        raise Interrupted(stopped.number, STOPPED) from None
    console.print(found["note"], style="bold", highlight=False)
    return found


def _define(values: flags.FlagValues) -> None:
    define(values, [*suites(), LOOP])


def _run(values: flags.FlagValues) -> None:
    known, every = suites(), all_peers()
    refs = [name for name in values.against if name not in every and commits.commit(name)]
    values.against = [name for name in values.against if name not in refs]
    options = parse(values, [*known, LOOP], every)
    if set(values.suite) == {LOOP}:
        _check_loop(values)
    _check_peers(options.against, {x: known[x].against for x in values.suite if x in known})
    console = Console()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        busy = f"the machine is busy (load {load:.1f} on {cores} cores): these are no measurements"
        console.print(busy, style="yellow", highlight=False)
    if refs:
        for ref in refs:
            console.print(commits.table(commits.beside(ref, *_asked(values, options)), ref))
        return
    stopped = ending(STOPPED)
    # two at once would write over each other's files
    with held(workdir := Path(values.workdir)), stopped:
        _check(workdir, values.suite)
        _measure(known, values.suite, options, workdir, console, load)


def _measure(
    known: dict[str, Suite],
    names: Sequence[str],
    options: Options,
    workdir: Path,
    console: Console,
    load: float,
) -> None:
    found: dict[str, Any] = {}
    command = redact.started("experiments.benchmark")
    environment = records.environment(command) | {
        **{name: os.environ[name] for name in sorted(os.environ) if name.startswith(TOLD)},
        "load at start": round(load, 1),
    }
    environment |= machine.device()
    peaks = machine.peaks()
    _keep(workdir)
    # last, because training keeps memory for the rest of the process
    for name in sorted(dict.fromkeys(names), key=LOOP.__eq__):
        try:
            if name == LOOP:
                found[name] = run_loop(console)
            else:
                suite = known[name]
                told = {"title": suite.title, "note": suite.note, "ours": suite.ours}
                found[name] = {**told, "rows": []}
                run_suite(suite, options, console, peaks, found[name]["rows"])
        finally:
            # the best of the run: something else may have had the machine
            peaks = {dtype: max(x, peaks[dtype]) for dtype, x in machine.peaks().items()}
            share((row for suite in found.values() for row in suite["rows"]), peaks)
            environment["load at end"] = round(os.getloadavg()[0], 1)
            environment["matrix product peak"] = machine.told(peaks)
            path = benchmark_page.write(found, environment, workdir)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


def _check(workdir: Path, measured: Sequence[str]) -> None:
    """Raises RunDirectoryError if suites there, which these files hold as one, would be lost, or
    if it cannot be known which are."""
    path = workdir / "benchmark.json"
    there = (read_json(path) or {}).get("suites", {})
    if not isinstance(there, dict):
        what = f"suites: expected an object, got {str(there)[:40]!r}"
        raise RunDirectoryError(f"{path} is not as it was written: {what}; name another --workdir")
    if lost := [name for name in there if name not in measured]:
        raise RunDirectoryError(
            f"{workdir} holds {', '.join(lost)}, which this command does not measure; "
            "give another --workdir, or --suite with all of them"
        )


def _keep(workdir: Path) -> None:
    """What was measured before stays beside what is measured now, which may be stopped halfway."""
    n = next(n for n in itertools.count(1) if not (workdir / f"benchmark.{n}.json").exists())
    for kind in ("md", "html", "json"):
        if (path := workdir / f"benchmark.{kind}").exists():
            path.replace(workdir / f"benchmark.{n}.{kind}")


def _check_peers(against: Sequence[str], suites: dict[str, Collection[str]]) -> None:
    """Raises ConfigError for a peer that none of the suites has: ours would be timed alone."""
    has = [f"{suite} has {', '.join(own) or 'none'}" for suite, own in suites.items()]
    asked = [name for name in against if not any(name in own for own in suites.values())]
    if asked:
        told = "; ".join(has) or "loop has none"
        what = f"expected a peer of a suite that is measured ({told})"
        raise ConfigError(
            [f"--against={name}: {what}; name one, or another --suite" for name in asked]
        )


def _check_loop(values: flags.FlagValues) -> None:
    """Raises ConfigError for flags that `loop`, measured alone, would ignore."""
    given = [x for x in SHAPED if getattr(values, x) != values[x].default]
    what = "loop is of one setting; leave it out, or name another --suite too"
    if given:
        raise ConfigError([f"--{name}: {what}" for name in given])


def _asked(values: flags.FlagValues, options: Options) -> tuple[list[str], commits.Peers]:
    """The arguments of this benchmark for its processes, and its suites with their peers."""
    text = lambda value: ",".join(value) if isinstance(value, list) else value
    peers = {name: options.peers(suite.against) for name, suite in suites().items()} | {LOOP: []}
    arguments = [f"--{name}={text(getattr(values, name))}" for name in SHAPED]
    return arguments, {name: peers[name] for name in dict.fromkeys(values.suite)}


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
