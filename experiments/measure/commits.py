"""The same benchmark on another commit, in turns of whole processes: here, there, here, there."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments import provenance, stdout
from experiments.errors import ConfigError, LabError
from experiments.measure.suites import all_peers
from experiments.report.measurements import COPY, Row
from experiments.report.table import number
from experiments.signals import ending

TURNS = 2  # of each; the smallest time counts, and how far they differ is told
LABELS = ("suite", "contender", "dtype", "heads", "kv_heads", "width", "T", "mode")
Times = dict[tuple, float]
Turns = dict[tuple, list[float]]  # of each process
Peers = dict[str, list[str]]  # of each suite
# not all commits have loop's name for this: what they have always had is the suite
ASKED = (
    "import json; from experiments.measure.suites import suites; "
    "print(json.dumps({n: [*x.against] for n, x in suites().items()} | {'loop': []}))"
)


def commit(name: str) -> str | None:
    """The full id of what git calls `name` here; None if there is no such commit, or no git."""
    command = ["git", "-C", str(provenance.ROOT), "rev-parse", "--verify", "--quiet"]
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run([*command, f"{name}^{{commit}}"], capture_output=True, text=True)
        return done.stdout.strip() or None


@contextlib.contextmanager
def checkout(ref: str) -> Iterator[Path]:
    """A folder with the files of a commit, gone afterwards. Raises ConfigError for none, LabError
    if git cannot make it, as where the repository may not be written to."""
    if not (found := commit(ref)):
        raise ConfigError([f"--against={ref}: neither a peer nor a commit of this repository"])
    git = ["git", "-C", str(provenance.ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="attn-") as parent:
        folder = Path(parent) / "there"
        add = [*git, "add", "--detach", folder, found]
        done = subprocess.run(add, capture_output=True, text=True)
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2]
            raise LabError(f"--against={ref}: git cannot check it out: {why}")
        # else git would go on listing a folder that is gone, and a benchmark run that nobody reads
        with ending("stopped; nothing is written"):
            try:
                yield folder
            finally:
                subprocess.run([*git, "remove", "--force", folder], capture_output=True)


def beside(
    ref: str, arguments: Sequence[str], suites: Peers, tell: Callable[[str], None] = stdout.tell
) -> dict[str, Turns]:
    """Milliseconds of ours by what is timed, "here" and "there", of the suites that both have:
    beside the first peer of each that both have, or beside all where there is none. `arguments` are
    a benchmark's. Raises ConfigError if there is no such suite."""
    found: dict[str, Turns] = {"here": {}, "there": {}}
    with checkout(ref) as there, tempfile.TemporaryDirectory(prefix="attn-") as out:
        if not (there / "experiments/measure/suites.py").is_file():
            # Python would take that of this commit, which may be installed
            raise ConfigError(
                [f"--against={ref}: that commit has no suites to time; name a later one"]
            )
        theirs = json.loads(_python(there, "-c", ASKED))
        both = {n: [p for p in own if p in theirs[n]] for n, own in suites.items() if n in theirs}
        if left := ", ".join(n for n in suites if n not in both):
            if not both:
                raise ConfigError([f"--against={ref}: no suite of that commit is called {left}"])
            tell(f"{ref} has no {left}: left out")
        peers = ",".join(dict.fromkeys(own[0] for own in both.values() if own))
        against = [f"--against={peers}"] if peers else []
        arguments = [*arguments, f"--suite={','.join(both)}", *against]
        for turn in range(TURNS):
            for name, root in (("here", provenance.ROOT), ("there", there)):
                tell(f"turn {turn + 1} of {TURNS}: {name}")
                for key, value in _times(root, arguments, Path(out) / f"{name}{turn}").items():
                    found[name].setdefault(key, []).append(value)
    return found


def _times(root: Path, arguments: Sequence[str], workdir: Path) -> Times:
    _python(root, "-m", "experiments.benchmark", *arguments, f"--workdir={workdir}")
    found = json.loads((workdir / "benchmark.json").read_text())["suites"]
    rows = [r | {"suite": n} for n, s in found.items() for r in (*s["rows"], *_of_loop(s))]
    theirs = (COPY, *all_peers())
    ours = [r for r in rows if "minimum" in r and not r["contender"].startswith(theirs)]
    return {tuple(row.get(label) for label in LABELS): row["minimum"] for row in ours}


def _of_loop(suite: dict[str, Any]) -> list[Row]:
    """What the suite of the train loop has in place of rows."""
    what = {"alone": "alone_ms", "in the loop": "loop_ms"}
    return [{"contender": n, "minimum": min(suite[k])} for n, k in what.items() if k in suite]


def _python(root: Path, *arguments: str) -> str:
    """What a process of a checkout prints. Raises LabError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"the benchmark failed in {root}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def table(found: dict[str, Turns], ref: str) -> Table:
    """What is timed on both, and the ratio: below 1 where it became faster."""
    caption = "milliseconds of each process; the ratio of the smallest, and from the least to the "
    out = Table(caption=f"{caption}most of any two processes", caption_justify="left")
    for heading in ("", "here", ref, "here / there"):
        out.add_column(heading, justify="right" if heading else "left")
    for key, here in found["here"].items():
        if there := found["there"].get(key):
            what = ", ".join(f"{n} {v}" for n, v in zip(LABELS, key) if v is not None)
            times = (", ".join(map(number, x)) for x in (here, there))
            ratios = min(here) / min(there), min(here) / max(there), max(here) / min(there)
            out.add_row(what, *times, "{} ({} to {})".format(*map(number, ratios)))
    return out
