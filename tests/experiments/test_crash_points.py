"""A save that stops at any of its calls, by a kill or a power failure, loses nothing before it."""

import itertools
from pathlib import Path

import jax
import numpy as np
import power
import pytest
from test_checkpoint import make, state

from experiments import disk, manifest, records
from experiments.checkpoint import Checkpoints

MIXTURES = 4


def saved(run: Path, *steps: int, best: int | None = 1, keep: int = 2) -> Checkpoints:
    checkpoints = make(run / "checkpoints", keep=keep)
    for step in steps:
        checkpoints.save(step, state(step), progress={"at": step}, best=best)
    return checkpoints


def found_in(run: Path) -> int | None:
    """The step that a run goes on from; every bit of it is as it was saved."""
    restored = make(run / "checkpoints").restore(state(0), tell=lambda _: None)
    if restored is None:
        return None
    got, progress = restored
    step = progress["at"]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(state(step)), strict=True):
        assert np.array_equal(a, b)
    return step


# what is there before, the save, and what may be found: until it is done, and after
SAVES = {
    "the first": ((), {"step": 1, "best": 1}, {None, 1}, {1}),
    "another": ((1, 2, 3), {"step": 4, "best": 1}, {3, 4}, {4}),
    "a better one": ((1, 2, 3), {"step": 4, "best": 4}, {3, 4}, {4}),
    "one again": ((1, 2, 3), {"step": 3, "best": 1}, {2, 3}, {3}),
}


SLOW = {"the first", "another", "files"}  # the others are thorough: much the same
marked = lambda names: [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.thorough)
    for name in names
]


def violations(folder: Path, name: str) -> tuple[int, int, list[str]]:
    """(calls, states, what was found that may not be)."""
    before, save, until, after = SAVES[name]
    run = folder / "run"
    run.mkdir()
    checkpoints = saved(run, *before)
    step, best = save["step"], save["best"]
    act = lambda: checkpoints.save(step, state(step), progress={"at": step}, best=best)
    moments = power.stops(run, act, MIXTURES)
    wrong, seen = [], set()
    for moment, allowed in itertools.chain(
        ((m, until) for m in moments[:-1]), [(moments[-1], after)]
    ):
        for what, left in moment:
            if (repr(left), *allowed) in seen:
                continue
            seen.add((repr(left), *allowed))
            place = power.put(left, folder / str(len(seen)))
            try:
                if (at := found_in(place)) not in allowed:
                    wrong.append(f"{what}: {at}")
                if what.startswith("killed"):  # what is left is in the way of nothing
                    saved(place, step, best=best)
                    assert found_in(place) == step
            except Exception as error:
                wrong.append(f"{what}: {error!r}")
    return len(moments), len(seen), wrong


@pytest.mark.parametrize("name", marked(SAVES))
def test_no_save_that_stops_anywhere_loses_or_damages_one(name: str, tmp_path: Path):
    calls, states, wrong = violations(tmp_path, name)
    print(f"{name}: {calls} crash points, {states} different states left, {len(wrong)} violations")
    assert not wrong, "\n".join(wrong)
    assert calls > 20


@pytest.mark.parametrize("what", marked(["files", "folders"]))
def test_a_writer_that_does_not_wait_for_the_disk_is_caught(what: str, tmp_path: Path, monkeypatch):
    if what == "folders":
        monkeypatch.setattr(disk, "sync", lambda path: None)
    else:
        entry = manifest._entry
        monkeypatch.setattr(manifest, "_entry", lambda path, sync=False: entry(path))
    assert violations(tmp_path, "another")[2]


def test_metrics_are_mended_whole_or_not_at_all(tmp_path: Path):
    run, wrong = tmp_path / "run", []
    run.mkdir()
    path = run / "metrics.jsonl"
    records.append_metrics(path, [{"step": step} for step in (1, 2, 3, 3)], sync=True)
    moments = power.stops(run, lambda: records.repair_metrics(path, 3), MIXTURES)
    for i, (what, left) in enumerate(itertools.chain.from_iterable(moments)):
        rows = records.read_metrics(power.put(left, tmp_path / str(i)) / path.name)
        wrong += [what] if [row["step"] for row in rows][:3] != [1, 2, 3] else []
    assert len(moments) == 4
    assert not wrong
