"""What a study leaves: results.json, its figures, and a README whose numbers are those results.

In a study's README, what stands between `<!-- name -->` and `<!-- end -->` is written by the
command, from results.json alone; all else is written by hand.
"""

import dataclasses
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from PIL import Image

from experiments import cli, disk, records, redact
from experiments.cells import forget_failures
from experiments.errors import ConfigError
from experiments.gathered import machine
from experiments.report import plots
from experiments.stdout import tell
from experiments.words import plural

Blocks = dict[str, str]  # what stands under each name of a README
Figures = dict[str, tuple[str, bytes]]  # svg and png
NOT_RECORDED = "date and commit not recorded"  # of the first studies
OF_ANOTHER = (
    "> Tables and figures are of this run, the words around them of the one in the repository.\n\n"
)
Study = Callable[..., tuple[dict[str, Any], Figures]]  # of those of COUNTS that it has
COUNTS = {"seeds": "training runs of each kind, or draws", "steps": "training steps"}


def main(
    study: Study,
    blocks: Callable[[dict[str, Any]], Blocks],
    folder: Path,
    *,
    usage: str,
    cells: Path | None = None,
    arguments: Sequence[str] | None = None,
    **counts: int,
) -> int:
    """The command of a study, with a flag for each of its `counts`, the default, and one to run
    again what failed of its `cells`; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments

    def define(values: flags.FlagValues) -> None:
        out = f"runs/studies/{folder.name}"
        flags.DEFINE_string("out", out, "the folder to write to", flag_values=values)
        for name, default in counts.items():
            flags.DEFINE_integer(name, default, COUNTS[name], flag_values=values)
        if cells:
            again = "run again what failed"
            flags.DEFINE_boolean("retry_failed", False, again, flag_values=values)

    def run(values: flags.FlagValues) -> None:
        small = [f"--{n}: expected at least 1" for n in counts if values[n].value < 1]
        if small:
            raise ConfigError(small)
        start, out = time.monotonic(), made(Path(values.out), folder)
        if cells and values.retry_failed:
            for workdir in (cells, *cells.glob("*/")):  # a study may have one for each task
                forget_failures(workdir)
        results, figures = study(**{name: values[name].value for name in counts})
        command = redact.command(f"experiments.studies.{folder.name}", arguments)
        results = {"run": about(command, time.monotonic() - start)} | results
        write(out, folder, rounded(results), blocks, figures)
        drawn = plural(len(figures), "figure")
        tell(f"written: {out / 'README.md'}, results.json and {drawn}")

    return cli.main(define, run, usage=usage, arguments=arguments)


def made(out: Path, folder: Path) -> Path:
    """The folder to write to. Raises ConfigError if what is there is not of this study: it would be
    lost, as the results of a comparison or another README."""
    title = (folder / "README.md").read_text().partition("\n")[0]
    own = {"README.md": title, "results.json": f"experiments.studies.{folder.name}"}
    there = {name: out / name for name in own if (out / name).exists()}
    text = lambda path: path.read_text(errors="replace")
    if others := [name for name, path in there.items() if own[name] not in text(path)]:
        what = f"holds {' and '.join(others)} of something else"
        raise ConfigError([f"--out: {out} {what}; name another folder"])
    out.mkdir(parents=True, exist_ok=True)
    return out


def study(
    settings: Callable[..., Any],
    measure: Callable[[Any], dict[str, Any]],
    figures: Callable[[dict[str, Any]], Figures],
) -> Study:
    """What `measure` finds under `settings`, a record made of seeds and steps, and its figures."""

    def found(seeds: int, steps: int) -> tuple[dict[str, Any], Figures]:
        chosen = settings(seeds=seeds, steps=steps)
        results = {"settings": dataclasses.asdict(chosen), **measure(chosen)}
        return results, figures(results)

    return found


def saved(fig, name: str) -> tuple[str, bytes]:
    """(svg, png) of a figure, small enough to be committed."""
    drawn, png = io.BytesIO(), io.BytesIO()
    fig.savefig(drawn, format="png", dpi=110, facecolor="white")
    # a palette of 64 colours is a quarter of the bytes
    Image.open(drawn).convert("RGB").quantize(64).save(png, format="png", optimize=True)
    return plots.standalone(plots.svg(fig, name)), png.getvalue()


def about(command: str, seconds: float) -> dict[str, Any]:
    found = records.environment(command)
    hardware = {k: found["hardware"][k] for k in ("processor", "device")}
    hardware["cores"] = found["hardware"]["cores_used"]  # its own, not all that there are
    return {
        "command": command,
        "started": found["started"],
        "git": found["git"],
        "seconds": round(seconds),
        "hardware": hardware,
        "versions": {k: found["versions"][k] for k in ("jax", "flax", "optax", "numpy")},
    }


def trained(runs: Iterable[Path]) -> list[str]:
    """What made these runs, each once: a study takes those that are there, whatever made them."""
    found = (records.read_environment(run / "environment.json") for run in runs)
    return sorted({f"{machine(x)}, commit {x.get('git')}" for x in found if x})


def run_line(results: dict[str, Any]) -> str:
    """Hardware, time and code, for a README; of its runs too, where those are kept."""
    run = results["run"]
    hardware, versions = run["hardware"], run["versions"]
    when = f"{run['started']}, commit {run['git']}" if "git" in run else NOT_RECORDED
    where = device = hardware["device"]
    if device == "cpu":
        where = f"{plural(hardware['cores'], 'core')} of {hardware['processor'] or device}"
    runs = f" Runs were made on {'; '.join(x)}." if (x := results.get("trained")) else ""
    return f"{where}, shared; jax {versions['jax']}; {run['seconds']} s in all; {when}.{runs}"


def write(out: Path, folder: Path, results: dict, blocks, figures: Figures) -> None:
    """`out` may be the study's own folder: then its README is renewed. Each file is written whole
    or left as it was."""
    text = renewed((folder / "README.md").read_text(), blocks(results))
    if out.resolve() != folder.resolve():  # where whoever runs it there reads them again
        text = OF_ANOTHER + text
    disk.write_text(out / "results.json", compact(results) + "\n")
    for name, (svg, png) in figures.items():
        disk.write_text(out / f"{name}.svg", svg)
        disk.write_bytes(out / f"{name}.png", png)
    disk.write_text(out / "README.md", text)


def compact(value: Any) -> str:
    """JSON with a line for each entry, but lists of numbers on one line."""
    text = json.dumps(value, indent=1)
    inner = lambda match: re.sub(r"\s+", " ", match[0])
    return re.sub(r"\[[^\[\]{}]*\]", inner, text)


def renewed(text: str, blocks: Blocks) -> str:
    """A README with each block as given. Raises ValueError unless it has these blocks."""
    pattern = r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)"
    found = [name for _, name, _ in re.findall(pattern, text, flags=re.S)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"README.md: expected the blocks {sorted(blocks)}, got {sorted(found)}")
    put = lambda match: f"{match[1]}{blocks[match[2]].strip()}\n{match[3]}"
    return re.sub(pattern, put, text, flags=re.S)


def rounded(value: Any) -> Any:
    """Numbers with six digits: tables show three or four, and would round those of four twice."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Sequence[float]) -> str:
    """Percent: mean over seeds, and the lowest and highest seed where they differ."""
    three = min(values), sum(values) / len(values), max(values)
    low, mean, high = (f"{100 * x:.1f}" for x in three)
    return mean if low == high else f"{mean} ({low} to {high})"
