"""Finished comparisons are read again, and only what is alike is averaged."""

import csv
import dataclasses
import datetime
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from experiments import gathered, records
from experiments.cells import Cells, begin
from experiments.config import mechanism, task
from experiments.errors import ConfigError, RunDirectoryError
from experiments.fairness import Fairness
from experiments.report import __main__ as command
from experiments.report import slices
from experiments.report.comparison import _several, render, write
from experiments.report.data import Cell, variants
from experiments.report.merge import apart, merged
from experiments.report.sight import Sight
from experiments.search import combinations
from experiments.sweep import Planned
from experiments.sweep import variants as names
from experiments.validation import from_dict, to_dict

HARDWARE = {"platform": "cpu", "processor": "EPYC", "cores": 2, "device": "cpu", "devices": 1}


def planned(name="softmax", seed=0, steps=2):
    return Planned(
        name,
        from_dict(
            {
                "task": task("digits"),
                "model": {"attention": mechanism(name), "width": 16, "layers": 1},
                "optimizer": {"learning_rate": 1e-3},
                "train": {"steps": steps, "batch_size": 4},
                "seed": seed,
            }
        ),
    )


def leave(workdir, runs, *, processor="EPYC", costs=None, speed=2.0):
    """The files that a comparison leaves; `runs` are planned ones and their test accuracy."""
    for p, accuracy in runs:
        folder = workdir / "cells" / p.name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(to_dict(p.experiment)))
        hardware = HARDWARE | {"processor": processor}
        environment = {"started": "2026-01-01T00:00", "command": "it", "hardware": hardware}
        (folder / "environment.json").write_text(json.dumps(environment))
        (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        if accuracy is not None:
            scores = {"accuracy": accuracy, "slices": {"all": accuracy}}
            result = {"validation": scores, "test": scores, "parameters": 3}
            result |= {"steps_per_second": speed, "baselines": {"chance": 0.1}}
            result |= {"compile_seconds": 3 / speed, "wall_seconds": 9 / speed}
            (folder / "result.json").write_text(json.dumps(records.sealed(result, p.config)))
    (workdir / "costs.json").write_text(json.dumps({"key": "k", "costs": costs or {}}))
    return workdir


@pytest.mark.parametrize("out", ["cells", "cells/", "cells/new/deep", "../a/cells/x"])
def test_a_report_is_not_written_among_the_runs(out, tmp_path, capsys):
    workdir = leave(tmp_path / "a", [(planned(), 0.5)])
    before = sorted(tmp_path.rglob("*"))
    assert command.main([f"--workdir={workdir}", f"--out={workdir}/{out}"]) == 2
    assert f"is among the runs of {workdir}; name another folder" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_report_is_not_written_to_a_file(tmp_path, capsys):
    workdir, file = leave(tmp_path / "a", [(planned(), 0.5)]), tmp_path / "file"
    file.touch()
    assert command.main([f"--workdir={workdir}", f"--out={file}"]) == 2
    assert f"--out: {file} is a file; name a folder" in capsys.readouterr().err


def test_a_link_to_itself_is_no_traceback(tmp_path, capsys):
    workdir, loop = leave(tmp_path / "a", [(planned(), 0.5)]), tmp_path / "loop"
    loop.symlink_to(loop)
    assert command.main([f"--workdir={loop}", f"--out={tmp_path / 'out'}"]) == 2
    assert command.main([f"--workdir={workdir}", f"--out={loop}"]) == 5
    assert capsys.readouterr().err.count(str(loop)) == 2


def means(comparison):
    rows = variants(comparison.cells, comparison.costs)
    return {row.name: row.mean("test.accuracy") for row in rows}


def test_a_finished_comparison_is_read_as_it_was(tmp_path):
    runs = [(planned(n, s), 0.5 + s / 4) for n in ("softmax", "linear") for s in (0, 1)]
    found = gathered.gathered(leave(tmp_path, runs, costs={"linear": {"forward_ms": 3.0}}))
    assert means(found) == {"softmax": 0.625, "linear": 0.625}
    assert found.costs["linear"] == {"forward_ms": 3.0}
    assert found.baselines == {"chance": 0.1}
    assert {cell.machine for cell in found.cells} == {"EPYC, 2 cores"}
    assert found.cells[0].metrics == ({"step": 1, "loss": 2.0},)
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0
    # what the report says of itself is believed, the numbers are read from the runs
    said = json.loads((tmp_path / "out/results.json").read_text()) | {"title": "mine"}
    said["cells"] = said["cells"][:2]
    said["cells"][0]["variant"] = "named by its sweep"
    (tmp_path / "results.json").write_text(json.dumps(said))
    again = gathered.gathered(tmp_path)
    assert again.title == "mine"
    assert [cell.variant for cell in again.cells] == ["named by its sweep", "linear"]
    assert again.about == "Also there, trials of a search or runs of another time: 2."


def test_trials_are_no_seeds_of_a_comparison_without_its_results(tmp_path, capsys):
    """Where results.json was not yet written, or removed, each was a seed more, chosen by score."""
    runs = [planned("softmax", 0), planned("softmax", 1)]
    rules = Fairness(search={"optimizer.learning_rate": [1e-3, 2e-3]})
    trials = combinations(runs, rules)
    begin(tmp_path, runs, rules)
    leave(tmp_path, [(p, 1.0) for p in trials])
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 5
    assert "cells has trials of a search alone" in capsys.readouterr().err
    leave(tmp_path, [(runs[0], 0.25), (runs[1], 0.75)])
    found = gathered.gathered(tmp_path)
    assert [cell.name for cell in found.cells] == [p.name for p in runs]
    assert means(found) == {"softmax": 0.5}
    others = f"Also there, trials of a search or runs of another time: {len(trials)}."
    # nor was it told that something was searched, and what each variant got
    assert found.about == f"{rules.told} {others}"
    assert [cell.notes for cell in found.cells] == [{}] * 2
    Cells(tmp_path, tuple(p.having({}, searched="x, best of 2", matched="y") for p in runs)).note()
    told = [cell.notes for cell in gathered.gathered(tmp_path).cells]
    assert told == [{"searched": "x, best of 2", "matched": "y"}] * 2
    # not as it was written: no rule is made up
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps(sweep | {"rules": {"search": "x"}}))
    assert gathered.gathered(tmp_path).about == others
    # of a sweep without a search, whatever is there is shown
    (tmp_path / "sweep.json").unlink()
    assert len(gathered.gathered(tmp_path).cells) == 4


@pytest.mark.parametrize("swept", [False, True])
def test_a_copy_of_a_runs_folder_is_no_seed_more(swept, tmp_path):
    """Each was one, so that an interval became a quarter of what it was."""
    runs = [(planned("softmax", s), 0.5 + s / 4) for s in (0, 1)]
    if swept:
        begin(tmp_path, [p for p, _ in runs], Fairness())
    leave(tmp_path, runs)
    before = gathered.gathered(tmp_path)
    for name in ("backup-{}", "zz-{}", "softmax-7-{}"):
        shutil.copytree(
            run := tmp_path / "cells" / runs[0][0].name, run.parent / name.format(run.name)
        )
    found = gathered.gathered(tmp_path)
    assert found.rows()[0].interval("test") == before.rows()[0].interval("test")
    assert found.about == "Also there, trials of a search or runs of another time: 3."
    if swept:
        assert [cell.name for cell in found.cells] == [p.name for p, _ in runs]


def called(name, label, seed):
    return dataclasses.replace(planned(name, seed), variant=label)


FOUR = [called(*x, s) for s in (0, 1) for x in (("softmax", "exact"), ("linear", "sums"))]


@pytest.mark.parametrize("solved", [{}, {"model.mlp_width": 24}])
def test_an_interrupted_comparison_is_told_as_its_sweep_has_it(solved, tmp_path):
    """Variants were called by what differs, the first that was started was the one that others are
    compared with, and what had not begun was passed over in silence."""
    rules = Fairness(match="params") if solved else Fairness()
    begin(tmp_path, FOUR, rules)
    exact, sums, _, more = (p.having(solved) for p in FOUR)
    leave(tmp_path, [(sums, 0.5), (more, 0.75), (exact, 0.25)])
    path = tmp_path / "cells" / exact.name / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": "2026-02-02T00:00"}))
    found = gathered.gathered(tmp_path)
    told = [(cell.variant, cell.seed) for cell in found.cells]
    assert told == [("exact", 0), ("sums", 0), ("sums", 1)]
    assert found.about == f"{rules.told} Of the 4 runs of its sweep 1 not begun yet.".strip()


def test_runs_that_were_added_since_a_report_are_in_the_next(tmp_path):
    """They were told to be of another time."""
    begin(tmp_path, FOUR[:2], Fairness())
    leave(tmp_path, [(p, 0.5) for p in FOUR[:2]])
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0
    shutil.copy(tmp_path / "out/results.json", tmp_path)
    begin(tmp_path, FOUR, Fairness())
    leave(tmp_path, [(FOUR[3], 0.75)])
    found = gathered.gathered(tmp_path)
    assert means(found) == {"exact": 0.5, "sums": 0.625}
    assert found.about == "Of the 4 runs of its sweep 1 not begun yet."


def test_one_name_of_several_settings_is_none(tmp_path):
    """As of runs that a search chose before and after --retry_failed."""
    begin(tmp_path, FOUR[:1], Fairness(search={"optimizer.learning_rate": [2e-3, 3e-3]}))
    chosen = [FOUR[0].having({"optimizer.learning_rate": x}) for x in (2e-3, 3e-3)]
    leave(tmp_path, [(p, 0.5) for p in chosen])
    told = {cell.variant for cell in gathered.gathered(tmp_path).cells}
    assert told == {"softmax learning_rate=0.002", "softmax learning_rate=0.003"}


def test_a_comparison_dates_from_the_first_session_of_its_runs(tmp_path):
    """A run that was gone on with counted from then on."""
    leave(tmp_path, [(planned(), 0.5)])
    path = tmp_path / "cells" / planned().name / "environment.json"
    first = json.loads(path.read_text())
    later = first | {"started": "2026-02-02T00:00", "earlier": [first]}
    for earlier, date in (([first], "2026-01-01"), ([5, {"started": 5}], "2026-02-02")):
        path.write_text(json.dumps(later | {"earlier": earlier}))
        assert gathered.gathered(tmp_path).dates.startswith(f"{date} 00:00 UTC to ")


def test_a_comparison_dates_to_what_was_measured_last(tmp_path):
    """Repeated when it was finished, which runs nothing, it dated to that moment."""
    leave(tmp_path, [(planned(), 0.5)])
    begun, day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp(), 24 * 3600
    name = planned().name
    cells = (Cell(name, "softmax", 0, {}, None, None),)
    changed = ((tmp_path / "cells" / name / "metrics.jsonl", 1), (tmp_path / "costs.json", 2))
    for path, _ in changed:
        os.utime(path, (begun, begun))
    for path, days in changed:
        os.utime(path, (begun, begun + days * day))
        ended = f"2026-01-0{1 + days} 00:00 UTC"
        assert gathered.dates(tmp_path / "cells", cells) == f"2026-01-01 00:00 UTC to {ended}"


@pytest.mark.parametrize("edit", [None, {"task": {"name": "recall"}, "seed": 7}])
def test_a_damaged_configuration_makes_no_other_variant_the_first(edit, tmp_path):
    """Its variant was taken for one of another task, so that others were compared with the next;
    and in a report of several for one of other settings."""
    several = {}
    for label, seeds in (("a", (0, 1, 2)), ("b", (3, 4))):
        runs = [planned(n, s) for s in seeds for n in ("softmax", "linear")]
        accuracy = lambda p: (p.variant == "linear") / 10 + p.experiment.seed / 100
        leave(tmp_path / label, [(p, accuracy(p)) for p in runs])
        config = tmp_path / label / "cells" / runs[0].name / "config.json"
        edited = json.loads(config.read_text()) | edit if edit else {}
        config.write_text(json.dumps(edited) if edited else "{")
        begin(tmp_path / label, runs, Fairness())
        several[label] = gathered.gathered(tmp_path / label)
    assert several["a"].cells[0].seed == 0
    for found, count in ((several["a"], 2), (merged(several), 3)):
        rows = {row.name: row for row in variants(found.cells, {})}
        assert [*rows] == ["softmax", "linear"]
        assert rows["softmax"].against is None
        assert rows["linear"].against.difference == pytest.approx(0.1)
        assert rows["linear"].against.seeds == count


def test_runs_are_looked_at_side_by_side_and_told_in_order(tmp_path):
    four = ("softmax", "linear", "window", "bigbird")
    cells = [Cell(name, name, 0, {}, {"test": {}}, None) for name in four]
    both = threading.Barrier(2, timeout=60)  # passed by two that wait for each other

    def look(run):
        both.wait()
        return None if run.name == "linear" else run

    found = gathered.sights(cells, tmp_path, look)
    assert [*found.items()] == [(n, tmp_path / n) for n in four if n != "linear"]


def test_unfinished_damaged_and_edited_runs_are_named_and_left_out(tmp_path, capsys):
    runs = [(planned(seed=s), 0.5) for s in range(7)] + [(planned("linear"), None)]
    leave(tmp_path / "in", runs)
    folders = [tmp_path / "in/cells" / p.name for p, _ in runs]
    edited = json.loads((folders[0] / "result.json").read_text())
    edited["test"]["accuracy"] = 0.99
    (folders[0] / "result.json").write_text(json.dumps(edited))
    (folders[1] / "result.json").write_text('{"test": {"accu')
    config = (folders[2] / "config.json").read_text()
    (folders[2] / "config.json").write_text(config.replace('"steps": 2', '"steps": 900'))
    (folders[3] / "config.json").unlink()
    unsealed = json.loads((folders[4] / "result.json").read_text())
    del unsealed["sha256"]
    (folders[4] / "result.json").write_text(json.dumps(unsealed))
    shutil.copy(folders[6] / "result.json", folders[5])  # another run's
    found = gathered.gathered(tmp_path / "in")
    errors = {cell.name: cell.error for cell in found.cells}
    assert [errors[x.name] for x in folders] == [
        "result.json is not as training wrote it here: damaged or edited, so left out",
        "result.json is not as training wrote it here: damaged or edited, so left out",
        "config.json is not what the folder is named for: damaged or edited, so left out",
        "config.json cannot be read: damaged or edited, so left out",
        "result.json is not as training wrote it here: damaged or edited, so left out",
        "result.json is not as training wrote it here: damaged or edited, so left out",
        None,
        "unfinished: step 1 of 2; experiments.compare goes on from there",
    ]
    assert [(x.name, x.variant) for x in found.cells if x.result] == [(folders[6].name, "softmax")]
    assert command.main([f"--workdir={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]) == 0
    told = capsys.readouterr().out
    assert all(f"left out: {x.name}" in told for x in folders if errors[x.name])
    page = (tmp_path / "out/report.html").read_text()
    assert "unfinished: step 1 of 2" in page
    assert "failed: unfinished" not in page + (tmp_path / "out/table.md").read_text()
    with (tmp_path / "out/results.csv").open(newline="") as file:
        told = [row["status"] for row in csv.DictReader(file)]
    assert sorted(told) == ["failed"] * 6 + ["finished", "unfinished"]
    assert "99.0" not in page


def test_metrics_that_cannot_be_read_are_those_of_one_run(tmp_path, capsys):
    # the whole report stopped at them
    leave(tmp_path / "in", [(planned(seed=s), 0.5) for s in (0, 1)])
    path = tmp_path / "in/cells" / planned().name / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    assert command.main([f"--workdir={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]) == 0
    why = "metrics.jsonl cannot be read: Is a directory, so left out"
    errors = [cell.error for cell in gathered.gathered(tmp_path / "in").cells]
    assert errors == [why, None]
    assert f"left out: {planned().name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "code", "told"),
    [
        ("results.json", 5, "results.json cannot be read: "),
        ("sweep.json", 5, "sweep.json cannot be read: "),
        ("config.json", 0, "config.json cannot be read: "),
        ("result.json", 0, "result.json is not as training wrote it"),
        ("metrics.jsonl", 0, "metrics.jsonl cannot be read: expected a file, got a pipe"),
        ("seen.npz", 0, "report: "),
    ],
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(file, code, told, tmp_path, capfd):
    leave(tmp_path / "in", [(planned(seed=s), 0.5) for s in (0, 1)])
    comparison = file in ("results.json", "sweep.json")
    path = tmp_path / "in" / ("" if comparison else f"cells/{planned().name}") / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert command.main([f"--workdir={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]) == code
    assert told in "".join(capfd.readouterr())


def test_a_folder_without_permission_is_one_run(tmp_path, monkeypatch, capsys):
    """The whole report stopped at it; who is root may enter it, so the error is made here."""
    leave(tmp_path / "in", [(planned(seed=s), 0.5) for s in (0, 1)])
    (tmp_path / "in/cells" / planned().name / "metrics.jsonl").unlink()  # which lists nothing
    stat = type(tmp_path).stat

    def refused(path, **options):
        if path.parent.name == planned().name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(type(tmp_path), "stat", refused)
    assert command.main([f"--workdir={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]) == 0
    told = f"left out: {planned().name}: config.json cannot be read: Permission denied, so left out"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        (None, "unfinished: no step was made; experiments.compare begins it"),
        ("MemoryError: too large", "MemoryError: too large"),
    ],
)
def test_a_run_that_was_killed_before_its_first_step_is_no_damage(failed, told, tmp_path):
    leave(tmp_path, [(planned("gla"), 0.5)])
    folder = tmp_path / "cells" / planned().name
    folder.mkdir()
    (folder / "claim").write_text("")
    if failed:
        (folder / "failure.json").write_text(json.dumps({"error": failed}))
    found = gathered.gathered(tmp_path)
    errors = [(cell.name, cell.error) for cell in found.cells]
    assert errors == [(planned("gla").name, None), (folder.name, told)]
    # what the report says of itself is of a run that began
    assert (found.command, found.environment) == ("it", {"hardware": HARDWARE})


@pytest.mark.parametrize(
    ("file", "edited", "named"),
    [
        ("notes.json", {"a": {"steps": 5}}, "a.steps: should be a valid string, got '5'"),
        ("results.json", {"title": 5}, "title: should be a valid string, got '5'"),
        ("results.json", {"cells": {"name": "x"}}, "cells: should be a valid array"),
        ("results.json", {"cells": [{"name": "x"}]}, "cells.0.variant: Field required"),
        (
            "results.json",
            {"baselines": {"chance": "x"}},
            "baselines.chance: expected a finite number",
        ),
        ("results.json", {"environment": "x"}, "environment: should be an object"),
        ("costs.json", {"costs": []}, "costs: should be an object, got '[]'"),
        ("costs.json", {"costs": {"softmax": {"step_ms": float("nan")}}}, "step_ms"),
        (
            "costs.json",
            {"costs": {"softmax": {"forward_ms": None, "step_ms": "abc"}}},
            "costs.softmax: step_ms: expected a finite number of at least 0, got 'abc'",
        ),
        ("costs.json", {"costs": {"softmax": {"step_ms": 10**400}}}, "step_ms: expected a finite"),
        ("costs.json", {"costs": {"softmax": {"decode_state_bytes": -1}}}, "at least 0, got '-1'"),
        ("results.json", {"baselines": {"chance": 10**400}}, "chance: expected a finite number"),
        (
            "costs.json",
            {"costs": {"softmax": {"step_flops_without": 5}}},
            "costs.softmax: step_flops_without: expected words, got '5'",
        ),
        ("costs.json", [], "holds no JSON object"),
        ("results.json", 5, "holds no JSON object"),
    ],
)
def test_what_was_edited_beside_the_runs_is_named(file, edited, named, tmp_path, capsys):
    leave(tmp_path, [(planned(), 0.5)])
    (tmp_path / file).write_text(json.dumps(edited))
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 5
    told = capsys.readouterr().err
    assert str(tmp_path / file) in told
    assert named in told
    (tmp_path / file).unlink()
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0


@pytest.mark.parametrize("file", ["results.json", "costs.json"])
def test_what_was_cut_beside_the_runs_is_named(file, tmp_path, capsys):
    leave(tmp_path, [(planned(), 0.5)])
    (tmp_path / file).write_text('{"costs": {')
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 5
    told = capsys.readouterr().err
    assert f"{tmp_path / file} cannot be read: " in told
    assert "remove the file to do without it" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("environment.json", '{"hardware": "x"}'),
        ("environment.json", '{"started": 5}'),
        ("environment.json", '{"command": 5}'),
        ("metrics.jsonl", '{"step": 1, "loss": "x", "validation": {"accuracy": [1]}}\n'),
        ("metrics.jsonl", f'{{"step": 1, "loss": {10**400}}}\n{{"step": {10**400}}}\n'),
        ("config.json", '{"seed": [1]}'),
        ("failure.json", '{"error": 5}'),
        ("failure.json", r'{"error": "DataError: /data/\udcff: expected this file"}'),
    ],
)
def test_a_report_does_without_what_was_edited_beside_a_result(file, text, tmp_path):
    leave(tmp_path, [(planned(seed=s), 0.5) for s in (0, 1)])
    folder = tmp_path / "cells" / planned().name
    (folder / file).write_text(text)
    if file == "failure.json":
        (folder / "result.json").unlink()
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0


def test_a_comparison_by_a_path_that_is_not_utf_8_is_reported(tmp_path):
    leave(tmp_path, [(planned(), 0.5)])
    (tmp_path / "results.json").write_text(json.dumps({"title": "Comparison: \udcff.py"}))
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0
    assert "<h1>Comparison: ?.py</h1>" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_a_report_that_nobody_listens_to_is_written(tmp_path):
    leave(tmp_path / "in", [(planned(), 0.5), (planned(seed=1), None)])
    arguments = [f"--workdir={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]
    read, write = os.pipe()
    os.close(read)
    command_line = [sys.executable, "-m", "experiments.report", *arguments]
    done = subprocess.run(command_line, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/report.html").exists()


def test_machines_are_never_averaged_together(tmp_path):
    costs = {"softmax": {"forward_ms": 1.0}}
    a = gathered.gathered(leave(tmp_path / "a", [(planned(seed=0), 0.25)], costs=costs))
    b = leave(tmp_path / "b", [(planned(seed=1), 0.75)], processor="Xeon")
    b = gathered.gathered(b)
    both = merged({"a": a, "b": b})
    one, other = "softmax [EPYC, 2 cores]", "softmax [Xeon, 2 cores]"
    assert means(both) == {one: 0.25, other: 0.75}
    assert both.costs == {one: costs["softmax"]}
    # and a comparison that went on elsewhere
    went_on = dataclasses.replace(a, cells=a.cells + b.cells)
    assert means(apart(went_on)) == {one: 0.25, other: 0.75}
    assert apart(went_on).costs == {one: costs["softmax"]}
    assert apart(a) == a


def test_variants_are_compared_on_their_own_machine_where_the_first_ran_there(tmp_path):
    """All were with the first of the first machine, of which they had few seeds or none."""
    both = ("softmax", "linear")
    runs = {"EPYC": [(n, s) for n in both for s in (0, 2)], "Xeon": [(n, 1) for n in both]}
    runs["Xeon"].append(("window", 0))
    runs["M4"] = [("window", 2)]
    cells = ()
    for processor, own in runs.items():
        left = leave(tmp_path / processor, [(planned(*x), 0.5) for x in own], processor=processor)
        cells += gathered.gathered(left).cells
    cells = tuple(sorted(cells, key=lambda c: (*both, "window").index(c.variant)))
    found = apart(dataclasses.replace(gathered.gathered(tmp_path / "EPYC"), cells=cells))
    on = lambda name, processor: f"{name} [{processor}, 2 cores]"
    for processor in ("EPYC", "Xeon"):
        assert found.firsts[on("linear", processor)] == on("softmax", processor)
    assert found.firsts[on("window", "Xeon")] == on("softmax", "Xeon")
    assert found.firsts[on("window", "M4")] == on("softmax", "EPYC")  # there is no nearer one
    told = f"{on('linear', 'Xeon')}, {on('window', 'Xeon')} against {on('softmax', 'Xeon')}"
    assert told in found.compared
    against = {row.name: row.against for row in found.rows()}
    assert against[on("linear", "EPYC")].seeds == 2


def test_a_first_that_failed_on_one_machine_is_compared_with_on_another(tmp_path):
    """It was in place of the one that finished beside them, and nothing was compared."""
    runs = {
        "EPYC": [(name, s, x) for name, x in (("softmax", None), ("linear", 0.5)) for s in (0, 1)],
        "Xeon": [(name, s, x) for name, x in (("softmax", 0.4), ("linear", 0.5)) for s in (2, 3)],
    }
    every = []
    for processor, own in runs.items():
        left = [(planned(name, seed), accuracy) for name, seed, accuracy in own]
        leave(tmp_path, left, processor=processor)
        every += [p for p, _ in left]
    begin(tmp_path, every, Fairness())
    found = apart(gathered.gathered(tmp_path))
    assert found.firsts["linear [Xeon, 2 cores]"] == "softmax [Xeon, 2 cores]"
    against = {row.name: row.against for row in found.rows()}
    assert against["linear [Xeon, 2 cores]"].difference == pytest.approx(0.1)


def test_a_report_of_two_machines_that_is_written_again_says_the_same(tmp_path):
    """Each name had its machine twice, and no costs; what is compared with what was told twice."""
    names = ("softmax", "linear")
    costs = {name: {"forward_ms": 1.0} for name in names}
    for processor, seeds in {"EPYC": (0, 1), "Xeon": (2, 3)}.items():
        runs = [(planned(name, seed), 0.5) for name in names for seed in seeds]
        leave(tmp_path, runs, processor=processor, costs=costs)
    path = write(apart(gathered.gathered(tmp_path)), tmp_path)
    assert path.read_text().count("Compared within each comparison") == 1
    again = apart(gathered.gathered(tmp_path))
    first = {name: (tmp_path / name).read_bytes() for name in ("table.md", "results.json")}
    assert write(again, tmp_path).read_text().count("Compared within each comparison") == 1
    assert first == {name: (tmp_path / name).read_bytes() for name in first}
    assert "forward (ms)" in first["table.md"].decode()
    assert {cell.own for cell in again.cells} == {*names}


def test_the_slices_of_each_machine_are_its_own():
    """The row of the last one stood for all, under the name of the first."""
    config = {"task": {"name": "recall", "length": 64}}
    of = lambda name, x: Cell(name, name, 0, config, {"test": at_accuracy(x)}, None, machine=name)
    at_accuracy = lambda x: {"accuracy": x, "slices": {"2 pairs": x, "4 pairs": x / 2}}
    (panel,) = slices.panels(variants([of("softmax [EPYC]", 0.75), of("softmax [Xeon]", 0.25)], {}))
    means = {name: row["2 pairs"] for name, row in panel.rows.items()}
    assert means == {"softmax [EPYC]": 75, "softmax [Xeon]": 25}


def test_costs_measured_on_none_of_the_machines_stay(tmp_path):
    a = gathered.gathered(
        leave(tmp_path, [(planned(), 0.25)], costs={"softmax": {"forward_ms": 1}})
    )
    other = {"hardware": HARDWARE | {"processor": "Xeon"}}
    moved = dataclasses.replace(a, environment=other)
    assert apart(moved).costs == a.costs
    # and that is told, once: with --processes=2 they are of all cores, the runs of half of them
    told = "Costs were measured on Xeon, 2 cores; its runs trained on EPYC, 2 cores."
    assert apart(apart(moved)).about == told
    assert merged({"moved": moved, "a": a}).about == f"moved: {told}"
    assert apart(dataclasses.replace(moved, costs={})).about == ""
    # whose record is damaged may have been there: it was told that "its runs trained on ."
    lost = tuple(dataclasses.replace(cell, machine="") for cell in moved.cells)
    assert apart(dataclasses.replace(moved, cells=lost)).about == ""


def test_of_machines_of_one_processor_the_cores_are_told(tmp_path):
    """Names were too long for a picture."""
    one = leave(tmp_path / "one", [(planned(), 0.25)])
    path = one / "cells" / planned().name / "environment.json"
    path.write_text(path.read_text().replace('"cores": 2', '"cores": 1'))
    two = leave(tmp_path / "two", [(planned(seed=1), 0.75)])
    found = {label: gathered.gathered(x) for label, x in {"one": one, "two": two}.items()}
    assert means(merged(found)) == {"softmax [1 core]": 0.25, "softmax [2 cores]": 0.75}


def test_a_name_that_stands_for_two_settings_becomes_two(tmp_path):
    short = leave(tmp_path / "short", [(planned(steps=2), 0.2), (planned("linear"), 0.3)])
    long = leave(tmp_path / "long", [(planned(steps=9), 0.6), (planned("linear", 1), 0.5)])
    both = merged({"short": gathered.gathered(short), "long": gathered.gathered(long)})
    assert means(both) == {"softmax (short)": 0.2, "linear": 0.4, "softmax (long)": 0.6}
    # of another machine too: there they seemed to be one variant, timed twice
    runs = [(planned(steps=9), 0.6), (planned("linear", 1), 0.5)]
    leave(tmp_path / "more", runs, processor="Xeon")
    both = merged({x: gathered.gathered(tmp_path / x) for x in ("short", "more")})
    assert means(both) == {
        "softmax [EPYC, 2 cores] (short)": 0.2,
        "linear [EPYC, 2 cores]": 0.3,
        "softmax [Xeon, 2 cores] (more)": 0.6,
        "linear [Xeon, 2 cores]": 0.5,
    }


def test_folders_of_one_name_are_told_by_the_paths_below_what_they_share(tmp_path):
    """Variants were called by whole paths, which filled the pictures."""
    a = leave(tmp_path / "a/runs", [(planned(steps=2), 0.2)])
    b = leave(tmp_path / "a/b/runs", [(planned(steps=9), 0.6)])
    assert command.main([f"--workdir={a}", f"--workdir={b}", f"--out={tmp_path / 'out'}"]) == 0
    table = (tmp_path / "out/table.md").read_text()
    assert "| softmax (runs) |" in table
    assert "| softmax (b/runs) |" in table


def test_of_three_comparisons_two_of_the_same_settings_are_one(tmp_path):
    """Each was a variant of its own as soon as the third had others."""
    runs = {
        "a": [(planned("linear"), 0.2)],
        "b": [(planned("linear", steps=9), 0.6)],
        "c": [(planned("linear"), 0.2), (planned("linear", 1), 0.4), (planned("window", 1), 0.5)],
    }
    both = merged({x: gathered.gathered(leave(tmp_path / x, own)) for x, own in runs.items()})
    assert means(both) == {
        "linear (a)": pytest.approx(0.3),
        "linear (b)": 0.6,
        "window": 0.5,
    }
    assert both.firsts["window"] == "linear (a)"


def test_pictures_and_costs_are_in_the_order_of_the_table(tmp_path):
    """Those of the last comparison were first."""
    look = lambda name: Sight((), np.ones((2, 2)), name)
    several = {}
    for label, own in (("b", ["linear", "gla"]), ("a", ["bigbird", "gla"])):
        left = leave(tmp_path / label, [(planned(name), 0.5) for name in own])
        costs = {name: {"forward_ms": float(ord(label))} for name in own}
        sights = {name: look(f"{name} in {label}") for name in own}
        found = gathered.gathered(left)
        several[label] = dataclasses.replace(found, costs=costs, sights=sights)
    both = merged(several)
    names = [row.name for row in both.rows()]
    assert [*both.costs] == [*both.sights] == names
    assert both.sights["gla"].about == "gla in b"
    assert both.costs["gla"] == {"forward_ms": float(ord("b"))}


def test_what_did_not_take_turns_is_told(tmp_path):
    cost = {"forward_ms": 1.0}
    left = {n: leave(tmp_path / n, [(planned(n), 0.5)], costs={n: cost}) for n in ("linear", "gla")}
    found = {name: gathered.gathered(folder) for name, folder in left.items()}
    both = merged({"a": found["linear"], "b": found["gla"], "c": found["linear"]})
    assert both.costs == {"linear": cost, "gla": cost}
    assert both.compared.endswith(
        "Timed in turns within each comparison only: linear in a; gla in b."
    )
    assert "in turns" not in merged({"a": found["linear"], "c": found["linear"]}).compared


def test_a_run_in_two_comparisons_counts_once_and_only_if_they_agree(tmp_path):
    a = gathered.gathered(leave(tmp_path / "a", [(planned(), 0.25), (planned(seed=1), 0.5)]))
    same = gathered.gathered(leave(tmp_path / "b", [(planned(), 0.25)]))
    assert means(merged({"a": a, "b": same})) == {"softmax": 0.375}
    slower = gathered.gathered(leave(tmp_path / "slower", [(planned(), 0.25)], speed=0.5))
    both = merged({"a": a, "slower": slower})
    assert means(both) == {"softmax": 0.375}
    assert not [cell.error for cell in both.cells if cell.error]
    other = gathered.gathered(leave(tmp_path / "c", [(planned(), 0.75)]))
    both = merged({"a": a, "c": other})
    assert means(both) == {"softmax": 0.375}
    assert [cell.error for cell in both.cells if cell.error] == [
        "the same run as in a, with another outcome, so left out"
    ]
    # its folder has the name that its variant had when it was begun
    begun = tmp_path / "b/cells" / planned().name
    begun.rename(begun.with_name(f"all-{begun.name}"))
    (found,) = merged({"a": a, "b": gathered.gathered(tmp_path / "b")}).rows()
    assert [cell.seed for cell in found.cells] == [0, 1]


@pytest.mark.parametrize("accuracy", [0.25, 0.75])
def test_a_run_of_two_machines_is_two(accuracy, tmp_path):
    costs = {"softmax": {"forward_ms": 1.0}}
    a = leave(tmp_path / "a", [(planned(), 0.25)], costs=costs)
    b = leave(tmp_path / "b", [(planned(), accuracy)], processor="Xeon", costs=costs)
    both = merged({"a": gathered.gathered(a), "b": gathered.gathered(b)})
    one, other = "softmax [EPYC, 2 cores]", "softmax [Xeon, 2 cores]"
    assert means(both) == {one: 0.25, other: accuracy}
    assert both.costs == {one: costs["softmax"], other: costs["softmax"]}
    assert not [cell.error for cell in both.cells if cell.error]
    page = render(both, [])
    for where in ("EPYC, 2 cores", "Xeon, 2 cores"):  # the list of runs had one name twice
        assert f"<b>{planned().name} on {where}</b>" in page


@pytest.mark.parametrize("elsewhere", ["EPYC", "Xeon"])
def test_a_finished_run_stands_for_its_unfinished_copies(elsewhere, tmp_path):
    done = gathered.gathered(leave(tmp_path / "a", [(planned(), 0.25)]))
    begun = leave(tmp_path / "b", [(planned(), None)], processor=elsewhere)
    begun = gathered.gathered(begun)
    for order in ({"a": done, "b": begun}, {"b": begun, "a": done}):
        assert [(c.variant, c.result, c.error) for c in merged(order).cells] == [
            ("softmax", done.cells[0].result, None)
        ]
    # also where runs of both machines are shown
    other = gathered.gathered(leave(tmp_path / "c", [(planned(seed=1), 0.5)], processor="Xeon"))
    both = merged({"b": begun, "a": done, "c": other})
    unfinished = [cell.variant for cell in both.cells if cell.error]
    assert unfinished == ([] if elsewhere == "EPYC" else ["softmax [Xeon, 2 cores]"])
    assert means(both) == {"softmax [EPYC, 2 cores]": 0.25, "softmax [Xeon, 2 cores]": 0.5}


def test_baselines_of_other_tasks_keep_their_names_apart(tmp_path):
    a = gathered.gathered(leave(tmp_path / "a", [(planned(), 0.25)]))
    b = dataclasses.replace(a, baselines={"chance": 0.5, "majority": 0.1})
    found = merged({"a": a, "b": b}).baselines
    assert found == {"chance (a)": 0.1, "chance (b)": 0.5, "majority (b)": 0.1}
    # one of which no run has finished has none, and makes no others differ
    none = dataclasses.replace(a, baselines={})
    assert merged({"a": a, "none": none, "c": a}).baselines == {"chance": 0.1}
    assert merged({"a": a, "b": b, "c": a}).baselines["chance (a, c)"] == 0.1


def test_an_environment_that_is_the_same_is_told_once(tmp_path):
    """It was listed in full for each directory."""
    a = gathered.gathered(leave(tmp_path / "a", [(planned(), 0.25)]))
    same = {"versions": {"jax": "1"}, "hardware": HARDWARE}
    on = lambda **more: dataclasses.replace(a, environment=same | more)
    assert merged({"a": on(git="one"), "b": on(git="two")}).environment == {
        "git (a)": "one",
        "git (b)": "two",
        "versions.jax": "1",
        **{f"hardware.{key}": value for key, value in HARDWARE.items()},
    }


def test_runs_of_several_commits_are_told(tmp_path):
    """The report named the commit of whoever wrote it, and their mean was of several."""
    runs = [planned(n, s) for n in ("softmax", "linear") for s in (0, 1)]
    begin(tmp_path, runs, Fairness())
    leave(tmp_path, [(p, 0.5) for p in runs])
    sessions = [{"git": "a1"}, {"git": "a1", "earlier": [{"git": "a1"}]}, {"git": "b2-dirty"}]
    sessions += [{"git": "b2-dirty", "versions": {"jax": "2"}, "earlier": [{"git": "a1"}]}]
    report = lambda: command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"])
    texts = lambda: [(tmp_path / "out" / x).read_text() for x in ("report.html", "table.md")]
    for session, told in ((sessions[:1] * 4, False), (sessions, True)):
        for p, x in zip(runs, session):
            path = tmp_path / "cells" / p.name / "environment.json"
            path.write_text(json.dumps({"versions": {"jax": "1"}, "hardware": HARDWARE} | x))
        assert report() == 0
        what = "Trained by several versions of the code or the data: "
        what += "git a1 (2 runs) and b2-dirty (1 run) and a1, then b2-dirty (1 run); "
        what += "jax 1 (3 runs) and 2 (1 run)."
        assert [what in text for text in texts()] == [told] * 2
        assert ["several versions" in text for text in texts()] == [told] * 2


def test_a_report_that_later_code_writes_again_says_what_code_trained(tmp_path):
    """The same command, a commit later, named that commit alone above the runs of the earlier."""
    runs = [planned(name) for name in ("softmax", "linear")]
    begin(tmp_path, runs, Fairness())
    leave(tmp_path, [(p, 0.5) for p in runs])
    trained = {"git": "a1", "versions": {"jax": "1", "flax": "1"}}
    for p in runs:
        path = tmp_path / "cells" / p.name / "environment.json"
        path.write_text(json.dumps(trained | {"hardware": HARDWARE}))
    found = gathered.gathered(tmp_path)
    told = "Trained by another version of the code than wrote this report: git a1 (2 runs); "
    told += "jax 1 (2 runs)."
    later = {"git": "b2", "versions": {"jax": "2", "flax": "1"}}
    for now, other in ((trained, False), (later, True)):
        write(dataclasses.replace(found, environment=now), tmp_path)
        texts = [(tmp_path / name).read_text() for name in ("report.html", "table.md")]
        assert [told in text for text in texts] == [other] * 2
        assert ["another version" in text for text in texts] == [other] * 2


def test_outside_of_git_a_report_is_of_no_other_code():
    """No commit was called another than none."""
    cells = [Cell(n, n, 0, {}, {"test": {}}, None, code={"git": "", "jax": "1"}) for n in "ab"]
    assert _several(cells, {"git": "", "versions": {"jax": "1"}}) == ""
    assert _several(cells, {"git": "", "versions": {"jax": "2"}}).endswith(": jax 1 (2 runs).")


def test_runs_of_other_settings_of_jax_are_told(tmp_path, monkeypatch):
    """Seeds of JAX_DEFAULT_PRNG_IMPL=rbg start from other parameters and were averaged with those
    of threefry without a word, as were runs of another precision."""
    runs = [planned("softmax", s) for s in (0, 1)]
    begin(tmp_path, runs, Fairness())
    leave(tmp_path, [(p, 0.5) for p in runs])
    files = [tmp_path / "cells" / p.name / "environment.json" for p in runs]
    for path, kind in zip(files, ("threefry2x32", "rbg")):
        monkeypatch.setattr(records, "settings", lambda kind=kind: {"jax_default_prng_impl": kind})
        told = records.other_settings(path)
        records.write_environment(path, "it")
    assert told == ""
    assert records.other_settings(files[0]).startswith(
        "with jax_default_prng_impl=rbg (was threefry2x32): "
    )
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 0
    what = "jax_default_prng_impl threefry2x32 (1 run) and rbg (1 run)."
    assert what in (tmp_path / "out" / "table.md").read_text()


def test_settings_of_jax_have_names_that_jax_knows():
    assert all(hasattr(jax.config, name) for name in records.SETTINGS)
    assert records.environment()["settings"]["jax_default_prng_impl"] == "threefry2x32"


def test_decode_states_of_earlier_versions_are_left_out_where_nothing_decodes(tmp_path):
    """They stood in costs.json for encoders too."""
    measured = {"decode_state_bytes": 64, "step_ms": 2.0}
    costs = dict.fromkeys(("softmax", "linear", "gone"), measured)
    for causal in (False, True):
        runs = [planned(x).having({"model.causal": causal}) for x in ("softmax", "linear")]
        left = leave(tmp_path / str(causal), [(p, 0.5) for p in runs], costs=costs)
        found = gathered.gathered(left).costs
        assert found["gone"] == measured | {"decode_state_bytes": None}
        assert found["softmax"] == found["linear"] == (measured if causal else found["gone"])


def test_a_decode_state_stays_though_its_task_is_none_of_ours(tmp_path, monkeypatch):
    """A report does not know what lies outside this repository, and left the column out."""

    def unknown(config):
        raise ConfigError(["task.name: unknown task 'mine'"])

    monkeypatch.setattr(gathered, "from_dict", unknown)
    costs = {"softmax": {"decode_state_bytes": 64}}
    runs = [(planned().having({"model.causal": True}), 0.5)]
    assert gathered.gathered(leave(tmp_path, runs, costs=costs)).costs == costs


def test_a_folder_that_does_not_exist_is_a_mistake_of_the_command_line(tmp_path, capsys):
    """It was said to hold no comparison, with the exit code of another's directory."""
    none, out = tmp_path / "none", tmp_path / "out"
    assert command.main([f"--workdir={none}", f"--out={out}"]) == 2
    told = f"--workdir={none}: expected a folder of finished runs, and there is no such folder"
    assert told in capsys.readouterr().err
    assert not out.exists()


def test_variants_of_other_tasks_are_not_tested_against_each_other():
    ask = {"digits": {"name": "digits"}, "recall": {"name": "recall"}}
    result = lambda name, x: {"test": {"accuracy": x}, "baselines": {"chance": len(name) / 100}}
    cells = [
        Cell(f"{n}-{s}", n, s, {"task": ask[t], "seed": s}, result(t, x + s / 10), None)
        for s in (0, 1)
        for n, t, x in (("a", "digits", 0.5), ("b", "recall", 0.1), ("c", "recall", 0.3))
    ]
    assert {row.name: row.against and row.against.difference for row in variants(cells, {})} == {
        "a": None,
        "b": None,
        "c": pytest.approx(0.2),
    }
    assert gathered.baselines(cells) == {"chance": 0.06}
    cells[1].result["baselines"]["chance"] = 0.5  # of b's first
    assert gathered.baselines(cells) == {"chance (a, c)": 0.06, "chance (b)": 0.5}


def test_a_variant_is_compared_with_the_first_of_its_own_comparison(tmp_path):
    """All were compared with the first of the first, which may have trained otherwise."""

    def left(label, names, steps):
        runs = [
            (planned(name, s, steps), (n + s + steps) / 10)
            for n, name in enumerate(names)
            for s in (0, 1)
        ]
        return gathered.gathered(leave(tmp_path / label, runs))

    def differences(**several):
        rows = merged(several).rows()
        return {x.name: x.against and round(10 * x.against.difference) for x in rows}

    short = left("short", ["linear", "softmax"], 2)
    long = left("long", ["linear", "softmax", "window"], 5)
    assert differences(short=short, long=long) == {
        "linear (short)": None,
        "softmax (short)": 1,
        "linear (long)": None,
        "softmax (long)": 1,
        "window": 2,
    }
    told = "softmax (short) against linear (short); softmax (long), window against linear (long)."
    assert merged({"short": short, "long": long}).compared.endswith(told)
    # the first of all where both have it, or where there is no other
    more = left("more", ["gla", "linear"], 2)
    more = dataclasses.replace(more, cells=more.cells[:2] + short.cells[:2])
    alone = left("alone", ["window"], 3)
    shared = {"short": short, "more": more, "alone": alone}
    assert differences(**shared) == {"linear": None, "softmax": 1, "gla": 0, "window": 1}
    assert "ompared" not in merged(shared).compared


def test_that_the_first_failed_is_told(tmp_path):
    """The column of differences was gone without a word, and "against softmax" stood above."""
    left = lambda label, *runs: (
        begin(leave(tmp_path / label, runs), [p for p, _ in runs], Fairness()),
        gathered.gathered(tmp_path / label),
    )[1]
    some = lambda name, accuracy, steps=2: [(planned(name, s, steps), accuracy) for s in (0, 1)]
    failed = left("failed", *some("softmax", None), *some("linear", 0.5), *some("window", 0.4))
    told = "Nothing is compared with softmax, the first: of its 2 runs 0 finished, and a test"
    (tmp_path / "out").mkdir()
    page = write(apart(failed), tmp_path / "out").read_text()
    table = (tmp_path / "out/table.md").read_text()
    assert "against the first (points)" not in table
    assert told in page
    assert told in table
    other = left("other", *some("gla", 0.3, 5), *some("linear", 0.5, 5))
    both = merged({"failed": failed, "other": other}).compared
    assert told in both
    assert "against softmax" not in both
    assert "linear (other) against gla" in both
    # of one seed nothing is tested, whether it failed or not
    one = left("one", (planned("softmax"), None), (planned("linear"), 0.5))
    assert apart(one).compared == apart(other).compared == ""


def test_all_tests_of_a_task_are_corrected_together():
    """Of a report of several comparisons or machines those of each were, as if there were no more:
    of ten false ones four in ten reports had a finding."""
    at_accuracy = lambda x: {"test": {"accuracy": x, "answers": 1000}}
    cells = [
        Cell(f"{name}-{s}", name, s, {"seed": s}, at_accuracy(x + noise), None)
        for name, x in (("a", 0.5), ("b", 0.6), ("c", 0.5), ("d", 0.62))
        for s, noise in enumerate((0.01, -0.01, 0.0))
    ]
    own = {"a": "a", "b": "a", "c": "c", "d": "c"}
    p = lambda some: {x.name: x.against.p for x in variants(some, {}, own) if x.against}
    alone, together = p(cells[:6]) | p(cells[6:]), p(cells)
    assert alone["d"] < alone["b"] == together["b"]
    assert together["d"] == pytest.approx(2 * alone["d"])


def test_a_copy_of_the_first_under_another_name_is_not_in_its_place(tmp_path):
    """All were tested against that of the last comparison, which may have fewer seeds."""

    def left(label, seeds, **kinds):
        runs = [
            (dataclasses.replace(planned(kind, s), variant=name), (n + s) / 10)
            for n, (name, kind) in enumerate(kinds.items())
            for s in seeds
        ]
        begin(leave(tmp_path / label, runs), [p for p, _ in runs], Fairness())
        return gathered.gathered(tmp_path / label)

    a = left("a", range(4), softmax="softmax", linear="linear")
    b = left("b", range(2), baseline="softmax", window="window")
    against = {row.name: row.against for row in merged({"a": a, "b": b}).rows()}
    assert against["softmax"] is against["baseline"] is None
    assert (against["linear"].seeds, against["window"].seeds) == (4, 2)


def test_runs_of_other_settings_are_not_edited_into_one_variant(tmp_path):
    runs = [(planned(), 0.25), (planned("linear"), 0.5)]
    workdir = leave(tmp_path, runs)
    named = [{"name": p.name, "variant": "softmax"} for p, _ in runs]
    (workdir / "results.json").write_text(json.dumps({"cells": named}))
    with pytest.raises(RunDirectoryError, match=r"different settings one variant: \['softmax'\]"):
        gathered.gathered(workdir)


@pytest.mark.parametrize(
    "settings",
    [
        [{"model.attention": {"name": "linear"}}, {"model.cross": {"name": "linear"}}],
        [{"name": "a", "task.length": 5}, {"name": "a", "model.length": 5}],
    ],
)
def test_fields_of_one_name_are_told_apart(settings):
    assert len(set(names(settings))) == 2


def test_what_is_no_comparison_is_refused(tmp_path, capsys):
    out = f"--out={tmp_path / 'out'}"
    assert command.main([f"--workdir={tmp_path}", out]) == 5
    (tmp_path / "cells").mkdir()
    assert command.main([f"--workdir={tmp_path}", out]) == 5
    assert command.main([f"--workdir={tmp_path}", f"--workdir={tmp_path}/.", out]) == 2
    assert command.main([f"--workdir={tmp_path}", f"--out={tmp_path}"]) == 2
    assert command.main([f"--workdir={tmp_path}", out, out]) == 2
    errors = capsys.readouterr().err
    assert "has no folder cells" in errors
    assert "cells is empty" in errors
    assert "the same directory twice" in errors
    assert "name another folder" in errors
    assert "--out: given twice" in errors


def test_an_empty_workdir_is_not_the_current_folder(tmp_path, monkeypatch, capsys):
    """`--workdir=$UNSET` reported whatever comparison it was called in."""
    monkeypatch.chdir(tmp_path)
    assert command.main(["--workdir=", "--out=out"]) == 2
    assert command.main([f"--workdir={tmp_path}", "--workdir=", "--out=out"]) == 2
    assert capsys.readouterr().err.count("--workdir: is required") == 2


@pytest.mark.parametrize("name", ["..", "../../other", "/etc", "a/b"])
def test_a_run_named_out_of_the_directory_is_refused(name, tmp_path):
    leave(tmp_path, [(planned(), 0.5)])
    said = {"cells": [{"name": name, "variant": "softmax"}]}
    (tmp_path / "results.json").write_text(json.dumps(said))
    with pytest.raises(RunDirectoryError, match=r"results\.json names what is no run there"):
        gathered.gathered(tmp_path)


def test_a_result_is_sealed_against_edits_and_for_its_configuration():
    scores = {"accuracy": 0.5}
    whole = {"validation": scores, "test": scores, "parameters": 3, "steps_per_second": 2.0}
    found = records.sealed(whole, {"seed": 1})
    assert records.is_result(json.loads(json.dumps(found, indent=3)), {"seed": 1})
    assert not records.is_result(found, {"seed": 2})
    assert not records.is_result(found | {"parameters": 4}, {"seed": 1})
    for name in ("sha256", "config"):
        assert not records.is_result({k: v for k, v in found.items() if k != name}, {"seed": 1})


def test_machines_are_told_apart_by_what_times_depend_on():
    gpu = HARDWARE | {"platform": "gpu", "device": "H100", "devices": 8, "host": "n1"}
    assert gathered.machine({"hardware": gpu}) == "H100, 8 devices"
    assert gathered.machine({"hardware": gpu | {"devices": 1}}) == "H100, 1 device"
    assert gathered.machine({"hardware": HARDWARE}) == "EPYC, 2 cores"
    pinned = HARDWARE | {"cores_used": 1}
    assert gathered.machine({"hardware": pinned}) == "EPYC, 1 core"
    assert gathered.machine({"hardware": pinned | {"cores_used": 2}}) == "EPYC, 2 cores"
    assert gathered.machine({}) == ""
    # of which those of one seed, with other times and rounding, were averaged with the others
    several = HARDWARE | {"devices": 2}
    assert gathered.machine({"hardware": several}) == "EPYC, 2 cores as 2 devices"


def test_layers_of_their_own_are_named_one_by_one():
    layers = lambda left: [{"name": "conv", "kernel": 4}, {"name": "window", "left": left}]
    found = names([{"model.attention": layers(7)}, {"model.attention": layers(15)}])
    assert found == ["conv window left=7", "conv window left=15"]


def test_reports_into_one_folder_take_turns(tmp_path, monkeypatch):
    """Its table was of one and its page of the other, where both were written at once."""
    workdir, taken = leave(tmp_path / "a", [(planned(), 0.5)]), []

    def write(found, out):
        handle = os.open(out, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        taken.append(out)
        return out

    monkeypatch.setattr(command, "write", write)
    arguments = [f"--workdir={workdir}", f"--out={tmp_path / 'out'}"]
    assert command.main(arguments) == command.main(arguments) == 0  # and it is let go
    assert len(taken) == 2
    assert not list((tmp_path / "out").iterdir())
