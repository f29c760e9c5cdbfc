"""A comparison as it is on the disk, read without training anything."""

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments import records
from experiments.cells import NOTES, begun, failure
from experiments.errors import ConfigError, RunDirectoryError
from experiments.fairness import kept
from experiments.manifest import digest
from experiments.placed import labelled, placed, seed, without_trials
from experiments.records import read_object
from experiments.report import Comparison
from experiments.report.data import Cell, at, together
from experiments.report.sight import Sight
from experiments.results_file import MEND, Costs, Said, read
from experiments.rundir import CONFIG, METRICS, RESULT
from experiments.sweep import HASH, unlike
from experiments.validation import flat, from_dict
from experiments.words import plural

AT_ONCE = 2  # looks: each keeps about one core busy, and holds its matrices in memory
LEFT = (CONFIG, "environment.json", METRICS, RESULT)  # by a run, once it is compiled


def gathered(workdir: Path) -> Comparison:
    """The comparison in a directory, finished or not. A run that is unfinished, damaged or edited
    by hand is a cell with an error. Raises RunDirectoryError if there is no comparison."""
    folder = workdir / "cells"
    if not folder.is_dir():
        raise RunDirectoryError(f"{workdir} holds no comparison: it has no folder cells")
    said = read(workdir / "results.json", Said) or Said()
    planned = {cell.name: cell for cell in said.cells}
    if outside := [name for name in planned if Path(name).name != name or name == ".."]:
        raise RunDirectoryError(f"{workdir}/results.json names what is no run there: {outside}")
    environments = {x.name: _environment(x) for x in folder.iterdir() if x.is_dir()}
    sweep = begun(workdir / "sweep.json") or {"rules": {}, "runs": {}}
    runs = {name: run["variant"] for name, run in sweep["runs"].items()}
    run_of = placed([*environments, *planned], runs)
    # in the order of the sweep, as its first variant is what others are compared with
    places, last = {name: n for n, name in enumerate(runs)}, "~"  # not begun: after any date
    place = lambda x: places.get(run_of.get(x), len(places))
    there = sorted(environments, key=lambda x: (place(x), _began(environments[x]) or last, x))
    # of copies of a run's folder, which would be seeds more, the one that is called as it was made
    own = {x[-HASH:]: x for x in (*reversed(there), *filter(places.__contains__, there))}
    there = [x for x in there if own[x[-HASH:]] == x or x in planned]
    shown = {run_of.get(name) for name in planned}
    added = [x for x in there if x in run_of and run_of[x] not in shown]
    if not (names := [*planned, *added] if planned else without_trials(there, sweep)):
        what = "has trials of a search alone" if there else "is empty"
        raise RunDirectoryError(f"{workdir} holds no comparison: cells {what}")
    configs = [read_object(folder / name / CONFIG) or {} for name in names]
    intact = {n: x for n, x in zip(names, configs) if is_of(n, x)}
    labels = labelled(intact, {name: runs[run] for name, run in run_of.items()})
    labels |= {name: cell.own or cell.variant for name, cell in planned.items()}
    if several := unlike((labels[name], config) for name, config in intact.items()):
        raise RunDirectoryError(
            f"{workdir}/results.json calls runs of different settings one variant: {several}\n"
            f"  {MEND}"
        )
    rules = kept(sweep["rules"])
    notes = {name: cell.notes for name, cell in planned.items()}
    notes |= read(workdir / NOTES, dict[str, dict[str, str]]) or {}
    cells = [
        _cell(folder / name, labels.get(name, name), config, notes.get(name, {}))
        for name, config in zip(names, configs)
    ]
    left = len(runs) - len({run_of[name] for name in names if name in run_of})
    more = [_not_begun(left, len(runs)), _others(len({*environments} - {*names}))]
    costs = read(workdir / "costs.json", Costs) or Costs()
    first = next((environments[name] for name in there if environments[name]), {})
    return Comparison(
        title=said.title or f"Comparison: {workdir}",
        about=" ".join(filter(None, (said.about or rules.told, *more))),
        cells=on_machines(cells, folder),
        costs=_of_decoders(costs.costs, {labels[n]: x for n, x in intact.items()}),
        baselines=said.baselines or baselines(cells),
        environment=said.environment or without_run(first),
        command=said.command or first.get("command", ""),
        dates=said.dates or dates(folder, cells),
        sights=sights(cells, folder, Sight.load),
    )


def _of_decoders(costs: dict[str, Any], configs: dict[str, Any]) -> dict[str, Any]:
    """Without the decode state of what is not causal, which earlier versions measured too."""

    def decodes(variant: str) -> bool:
        config = configs.get(variant, {})
        if at(config, "model.causal") is True:  # a task or a mechanism may be the user's own
            return True
        try:
            return from_dict(config).model.sees_past_alone
        except ConfigError:
            return False  # not known, of another version

    key = "decode_state_bytes"
    wrong = {name for name, x in costs.items() if x.get(key) and not decodes(name)}
    return {name: x | {key: None} if name in wrong else x for name, x in costs.items()}


def is_of(name: str, config: dict[str, Any]) -> bool:
    """Whether a folder of this name, which ends with a hash, was made for the configuration."""
    return name.endswith(digest(config)[:HASH])


def machine(environment: dict[str, Any]) -> str:
    """The kind of machine that times and rounding depend on, not which of several equal ones."""
    hardware = environment.get("hardware") or {}
    if hardware.get("platform") in (None, "cpu"):
        used = hardware.get("cores_used", hardware.get("cores"))  # not in the first records
        what, count = hardware.get("processor", ""), plural(used, "core")
        # of one processor JAX makes as many as it is asked for, which share a batch
        if (devices := hardware.get("devices", 1)) != 1:
            count += f" as {plural(devices, 'device')}"
    else:
        what, count = hardware.get("device", ""), plural(hardware.get("devices"), "device")
    return f"{what}, {count}" if hardware else ""


def on_machines(cells: Sequence[Cell], folder: Path) -> tuple[Cell, ...]:
    """Each cell with the machine that its run last continued on, and the code of its sessions."""
    on = [_environment(folder / cell.name) for cell in cells]
    more = lambda x: {"machine": machine(x), "code": code(x)}
    return tuple(dataclasses.replace(cell, **more(x)) for cell, x in zip(cells, on))


def code(environment: dict[str, Any]) -> dict[str, str]:
    """The commit, the versions, JAX's settings, the user's own files and the data of a run; several
    of each if its sessions had several."""
    sessions = [x for x in (*environment.get("earlier", ()), environment) if isinstance(x, dict)]
    parts = {"git": "", "versions": {}, "settings": {}, "source": {}, "data": {}}
    each = [flat({name: x.get(name, none) for name, none in parts.items()}) for x in sessions]
    names = dict.fromkeys(name for x in each for name in x)
    had = lambda name: dict.fromkeys(str(x[name]) for x in each if name in x)
    brief = lambda name: name.removeprefix("versions.").removeprefix("settings.")
    return {brief(name): ", then ".join(had(name)) for name in names}


def sights(
    cells: Sequence[Cell], folder: Path, look: Callable[[Path], Sight | None]
) -> dict[str, Sight]:
    """What each variant attends to, from its first finished run."""
    first = {cell.variant: cell for cell in reversed(cells) if cell.result}
    names = [n for n in dict.fromkeys(cell.variant for cell in cells) if n in first]
    runs = [folder / first[name].name for name in names]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = dict(zip(names, threads.map(look, runs)))
    return {name: sight for name, sight in found.items() if sight is not None}


def baselines(cells: Sequence[Cell]) -> dict[str, float]:
    """The baselines of the tasks, as the finished runs recorded them (their data may be gone): by
    variant if they are not the same for all."""
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.result:
            found.setdefault(cell.variant, cell.result.get("baselines", {}))
    return together(found)


def without_run(environment: dict[str, Any]) -> dict[str, Any]:
    """What an environment says of the machine and the code."""
    return {k: v for k, v in environment.items() if k not in ("command", "started", "earlier")}


def dates(folder: Path, cells: Sequence[Cell]) -> str:
    """The dates from the start of the first run to the last that was measured, of runs or costs:
    not to now, as a finished comparison may be repeated, which runs nothing."""
    measured = [*folder.glob(f"*/{METRICS}"), *folder.parent.glob("costs.json")]
    changed = [datetime.datetime.fromtimestamp(x.stat().st_mtime, datetime.UTC) for x in measured]
    last = max(changed, default=datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds")
    began = [_began(_environment(folder / cell.name)) for cell in cells]
    first = min([last, *filter(None, began)])
    return " to ".join(f"{x[:10]} {x[11:16]} UTC" for x in (first, last))


def _environment(run: Path) -> dict[str, Any]:
    return records.read_environment(run / "environment.json")


def _began(environment: dict[str, Any]) -> str | None:
    """When the first session of a run was started."""
    sessions = [*environment.get("earlier", ()), environment]
    dates = (x.get("started") for x in sessions if isinstance(x, dict))
    return next((x for x in dates if isinstance(x, str)), None)


def _cell(folder: Path, label: str, config: dict[str, Any], notes: dict[str, str]) -> Cell:
    error = failure(folder)
    try:
        began, unread = any((folder / name).exists() for name in LEFT), None
        metrics = tuple(records.read_metrics(folder / METRICS))
    except OSError as cause:  # a folder without permission too
        began, metrics = True, ()
        unread = f"{Path(cause.filename).name} cannot be read: {cause.strerror}, so left out"
    result = read_object(folder / RESULT)
    if result is not None and not records.is_result(result, config):
        result = None
    if not began:
        error = error or "unfinished: no step was made; experiments.compare begins it"
    elif unread:
        result, error = None, unread
    elif not is_of(folder.name, config):
        what = "cannot be read" if not config else "is not what the folder is named for"
        result, error = None, f"config.json {what}: damaged or edited, so left out"
    elif result is not None:
        error = None  # of an earlier attempt
    elif (folder / RESULT).exists():
        error = "result.json is not as training wrote it here: damaged or edited, so left out"
    elif error is None:
        done = metrics[-1]["step"] if metrics else 0
        total = config.get("train", {}).get("steps", "?")
        error = f"unfinished: step {done} of {total}; experiments.compare goes on from there"
    # by the folder's name, for the configuration may be damaged
    return Cell(folder.name, label, seed(folder.name), config, result, error, metrics, notes)


def _not_begun(count: int, of: int) -> str:
    return f"Of the {plural(of, 'run')} of its sweep {count} not begun yet." if count else ""


def _others(count: int) -> str:
    """Not by their names, which a search has hundreds of."""
    return f"Also there, trials of a search or runs of another time: {count}." if count else ""
