"""A comparison runs each cell once, survives what happens to a cell, and says what happened."""

import dataclasses
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_experiment import write_config

import attn
import experiments.kept
from experiments import cells, compare, disk, evaluate, records, slurm, train, workers
from experiments.config import mechanism, task
from experiments.config_file import read
from experiments.dry_run import dry_run
from experiments.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Interrupted,
    LabError,
    NonFiniteError,
    RunDirectoryError,
)
from experiments.fairness import Fairness, Range
from experiments.gathered import gathered
from experiments.kept import Kept
from experiments.launch import launch_of
from experiments.lock import held
from experiments.measure import cost
from experiments.quantities import Step, flops, in_turns, layers, state_bytes, tokens
from experiments.report import costs as report_costs
from experiments.report.costs import costs
from experiments.report.data import Cell
from experiments.report.pictures import STATE
from experiments.report.table import NOTES
from experiments.signals import Signals
from experiments.sweep import Planned, plan, variants
from experiments.validation import from_dict, to_dict


def experiment(name="softmax", seed=0, **model):
    return from_dict(
        {
            "task": task("digits"),
            "model": {"attention": mechanism(name), "width": 16, "layers": 1, **model},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"steps": 2, "batch_size": 4},
            "seed": seed,
        }
    )


SWEEP = [Planned(name, experiment(name, seed)) for name in ("softmax", "linear") for seed in (0, 1)]


class Trainer:
    """Stands in for `train.run`: leaves the files that a run leaves, or raises what it is told."""

    def __init__(self, **trouble):
        self.trouble, self.ran = trouble, []

    def __call__(self, experiment, workdir, *, command, progress=True):
        self.ran.append(workdir.name)
        workdir.mkdir(parents=True, exist_ok=True)
        with (workdir.parent / "ran").open("a") as file:  # what processes ran, too
            file.write(f"{workdir.name}\n")
        for start, error in self.trouble.items():
            if workdir.name.startswith(start.replace("_", "-")):
                raise error
        result = {
            "test": {"accuracy": 0.5},
            "validation": {"accuracy": 0.6},
            "parameters": 10,
            "steps_per_second": 3.0,
            "baselines": {"chance": 0.1},
        }
        (workdir / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        (workdir / "result.json").write_text(
            json.dumps(records.sealed(result, to_dict(experiment)))
        )
        return result


def run(trainer, workdir, sweep=SWEEP, **options):
    return compare.compare(
        sweep,
        workdir,
        title="t",
        command="the command",
        run=trainer,
        measure=lambda chosen, cache: {name: {} for name in chosen},
        **options,
    )


TWO = lambda work, arguments, most: workers.run(work, arguments, 2, most)


def test_every_cell_is_run_and_reported(tmp_path):
    trainer = Trainer()
    found = run(trainer, tmp_path)
    assert trainer.ran == [p.name for p in SWEEP]
    assert [c.result["test"]["accuracy"] for c in found.cells] == [0.5] * 4
    report = (tmp_path / "report.html").read_text()
    assert all(p.name in report for p in SWEEP)
    assert found.baselines["chance"] == 0.1


def test_a_first_that_failed_is_told_below_the_table(tmp_path, capsys):
    """Its column of differences was missing, and nothing said why."""
    run(Trainer(softmax=LabError("no")), tmp_path)
    told = "Nothing is compared with softmax, the first: of its 2 runs 0 finished, and a test"
    assert told in capsys.readouterr().out.rpartition("└")[2]


def test_finished_cells_never_run_again(tmp_path):
    first = run(Trainer(), tmp_path)
    again = Trainer()
    second = run(again, tmp_path)
    assert again.ran == []
    assert [c.result for c in first.cells] == [c.result for c in second.cells]
    assert second.cells[0].metrics == ({"step": 1, "loss": 2.0},)


def test_a_report_says_what_its_runs_were_made_alike_by(tmp_path):
    """What each chose stood in the table, and nowhere from what."""
    rate, b1 = Range(low=1e-4, high=0.1, log=True), [0.8, 0.9]
    search = {"optimizer.learning_rate": rate, "optimizer.b1": b1}
    rules = Fairness(match="params", budget={"tokens": 1e6}, search=search, trials=20)
    assert rules.told == (
        "Made alike: params matched to the first variant's; a budget of 1,000,000 tokens; "
        "optimizer.learning_rate searched from 0.0001 to 0.1 by its logarithm; "
        "optimizer.b1 searched among 0.8, 0.9; 20 trials drawn for each variant."
    )
    assert run(Trainer(), tmp_path / "alone").about == ""
    rules = Fairness(search={"optimizer.b1": b1})
    found = run(Trainer(), tmp_path / "x", rules=rules, about="One.")
    assert found.about == "One. Made alike: optimizer.b1 searched among 0.8, 0.9."


def test_a_run_that_has_ended_is_not_looked_at_before_each_later_one(tmp_path, monkeypatch):
    looked, outcome = [], cells.Cells.outcome
    look = lambda self, planned: looked.append(planned.name) or outcome(self, planned)
    monkeypatch.setattr(cells.Cells, "outcome", look)
    cells.Cells(tmp_path, tuple(SWEEP)).work(Trainer(), "", lambda line: None)
    # at first, when it is claimed, to count what is left then and before the next
    assert looked.count(SWEEP[0].name) == 4


def test_more_runs_may_be_added_to_a_comparison(tmp_path):
    run(Trainer(), tmp_path)
    again = Trainer()
    more = [*SWEEP, Planned("softmax", experiment("softmax", 2))]
    run(again, tmp_path, more)
    assert again.ran == [more[-1].name]


def test_a_run_stays_what_it_is_when_another_changes_its_label(tmp_path):
    before = run(Trainer(), tmp_path)
    longer = [dataclasses.replace(p, variant=f"{p.variant} width=16") for p in SWEEP]
    more = [*longer, Planned("linear width=8", experiment("linear", width=8))]
    found = run(again := Trainer(), tmp_path, more)
    assert again.ran == [more[-1].name]
    assert [c.name for c in found.cells[:4]] == [c.name for c in before.cells]
    assert found.cells[0].variant == "softmax width=16"
    with pytest.raises(RunDirectoryError, match="linear width=8: it is no longer there"):
        run(again, tmp_path)


def test_a_copy_of_a_runs_folder_is_not_taken_for_it(tmp_path):
    """Whichever was listed last was the run: of two, one unfinished, it may be trained again."""
    run(Trainer(), tmp_path)
    for name in ("aa", "zz"):
        copy = tmp_path / "cells" / f"{name}-{SWEEP[0].name}"
        shutil.copytree(tmp_path / "cells" / SWEEP[0].name, copy)
        (copy / "result.json").unlink()
    again = Trainer()
    found = run(again, tmp_path)
    assert again.ran == []
    assert [cell.name for cell in found.cells] == [p.name for p in SWEEP]


def test_a_sweep_whose_runs_changed_is_refused_with_the_difference(tmp_path):
    run(Trainer(), tmp_path)
    changed = [Planned("softmax", experiment("softmax", mlp_width=32)), *SWEEP[1:]]
    with pytest.raises(RunDirectoryError, match="mlp_width: 128 there, 32 here") as caught:
        run(again := Trainer(), tmp_path, changed)
    assert caught.value.code == 5
    with pytest.raises(RunDirectoryError, match="linear: seed 1 is no longer there"):
        run(again, tmp_path, SWEEP[:3])  # the variant still is, with another seed
    with pytest.raises(RunDirectoryError, match="linear: it is no longer there"):
        run(again, tmp_path, SWEEP[:2])
    assert again.ran == []
    assert run(again, tmp_path).cells[0].result  # and what was there is as it was


def test_a_failed_cell_is_a_row_and_the_others_go_on(tmp_path):
    trainer = Trainer(linear_0=MemoryError("too <large>"), softmax_1=NonFiniteError("step 3"))
    found = run(trainer, tmp_path)
    assert len(trainer.ran) == 4
    errors = {c.name[:9]: c.error for c in found.cells if c.error}
    assert errors["softmax-1"] == "NonFiniteError: step 3"
    assert errors["linear-0-"].startswith("MemoryError: too <large>\n\nTraceback")
    assert "failed: MemoryError: too <large>" in (tmp_path / "table.md").read_text()
    assert "1 of 2" in (tmp_path / "table.md").read_text()


def test_a_mechanism_that_exits_is_a_failed_cell_too(tmp_path):
    """It ended the comparison without a word, with code 0 and no report."""
    found = run(Trainer(linear_0=SystemExit(0)), tmp_path)
    (error,) = [c.error for c in found.cells if c.error]
    assert error.startswith("SystemExit: 0\n\nTraceback")


def test_why_a_run_failed_is_told_when_it_does(tmp_path):
    """It was "failed: ConfigError: 1 mistake:", and what that was stood in the report alone."""
    trainer, told = Trainer(softmax=ConfigError(["init_from=x: no such folder"])), []
    cells.Cells(tmp_path, tuple(SWEEP[:1])).work(trainer, "", told.append)
    assert told[-1] == "  failed: ConfigError: 1 mistake: init_from=x: no such folder"


def test_a_task_whose_files_are_gone_is_a_row_too(tmp_path):
    # the report asked the first run's task for its baselines, and was not written
    gone = from_dict(to_dict(experiment()) | {"task": task("text", data_dir="nowhere")})
    found = run(Trainer(text=DataError("nowhere")), tmp_path, [Planned("text", gone), *SWEEP[:2]])
    assert found.cells[0].error == "DataError: nowhere"
    assert found.baselines == {"chance": 0.1}
    assert "report.html" in {path.name for path in tmp_path.iterdir()}


def test_what_failed_is_run_again_only_when_asked(tmp_path):
    run(Trainer(linear_0=MemoryError("no")), tmp_path)
    again = Trainer()
    assert any(c.error.startswith("MemoryError: no") for c in run(again, tmp_path).cells if c.error)
    assert again.ran == []
    found = run(again, tmp_path, retry_failed=True)
    assert [name[:8] for name in again.ran] == ["linear-0"]
    assert not any(c.error for c in found.cells)


def test_a_machine_without_its_device_fails_no_run(tmp_path, monkeypatch, capsys):
    """With JAX_PLATFORMS=cuda and no GPU all runs of a sweep had failed, with "AssertionError: ",
    and the command ended in a traceback."""

    def fail():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", fail)
    path = write_config(tmp_path / "c.py", "sweep = lambda: [{'seed': n} for n in (0, 1)]\n")
    folder = tmp_path / "compared"
    assert compare.main([f"--config={path}", f"--workdir={folder}"]) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith("error: JAX_PLATFORMS=")
    assert "expected a platform that JAX can start here" in told
    assert not [*folder.glob("cells/*/failure.json")]
    assert train.main([f"--config={path}", f"--workdir={tmp_path / 'run'}"]) == 1


def test_a_full_disk_ends_the_comparison_and_fails_no_run(tmp_path):
    """Each later run was marked as failed, and left out when there was room again."""
    full = OSError(28, "No space left on device")
    orbax = CheckpointError("checkpoint 5: RESOURCE_EXHAUSTED: Disk quota exceeded")
    for error in (full, orbax):
        trainer = Trainer(softmax_1=error)
        with pytest.raises(type(error), match=re.escape(str(error))):
            run(trainer, tmp_path)
        assert trainer.ran[-1] == SWEEP[1].name
    found = run(again := Trainer(), tmp_path)
    assert again.ran == [p.name for p in SWEEP[1:]]
    assert not any(cell.error for cell in found.cells)


def test_metrics_that_cannot_be_read_do_not_lose_the_report(tmp_path):
    """One run's ended the comparison with an error, whose report was not written."""
    run(Trainer(), tmp_path)
    path = tmp_path / "cells" / SWEEP[2].name / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    found = run(again := Trainer(), tmp_path)
    assert again.ran == []
    told = "metrics.jsonl cannot be read: Is a directory, so left out"
    assert [cell.error for cell in found.cells] == [None, None, told, None]
    assert told in (tmp_path / "table.md").read_text()


def test_a_failure_that_was_edited_is_run_again(tmp_path):
    run(Trainer(linear_0=MemoryError("no")), tmp_path)
    (tmp_path / "cells" / SWEEP[2].name / "failure.json").write_text('{"error": 5}')
    found = run(again := Trainer(), tmp_path)
    assert again.ran == [SWEEP[2].name]
    assert not any(c.error for c in found.cells)


def test_an_interruption_ends_the_comparison_and_it_goes_on_later(tmp_path):
    with pytest.raises(Interrupted) as caught:
        run(Trainer(linear_0=Interrupted(15, "saved")), tmp_path)
    assert caught.value.code == 143
    assert not (tmp_path / "report.html").exists()
    again = Trainer()
    run(again, tmp_path)
    assert [name[:8] for name in again.ran] == ["linear-0", "linear-1"]


def test_a_result_that_cannot_be_read_is_left_to_the_run(tmp_path):
    run(Trainer(), tmp_path)
    (tmp_path / "cells" / SWEEP[0].name / "result.json").write_text("{")
    again = Trainer(softmax_0=RunDirectoryError("result.json cannot be read"))
    found = run(again, tmp_path)
    assert len(again.ran) == 1
    assert found.cells[0].error == "RunDirectoryError: result.json cannot be read"


def test_costs_that_cannot_be_measured_do_not_lose_the_report(tmp_path, capsys):
    def measure(chosen, cache):
        raise MemoryError("too long")

    found = compare.compare(SWEEP[:1], tmp_path, title="t", run=Trainer(), measure=measure)
    assert found.costs == {}
    assert "costs could not be measured: MemoryError: too long" in capsys.readouterr().out
    assert "| softmax | 50.0 |" in (tmp_path / "table.md").read_text()


def test_the_time_left_is_of_what_is_still_to_run(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pace = cells.Pace(3)
    assert pace.rest(3) == ""
    now[0] = 60.0  # two were done in a minute, by whoever
    assert pace.rest(1) == ", about 0:00:30"


@pytest.mark.slow
def test_processes_share_the_runs_and_each_is_run_once(tmp_path):
    found = run(Trainer(linear_0=MemoryError("no")), tmp_path, launch=TWO)
    ran = (tmp_path / "cells/ran").read_text().split()
    assert sorted(ran) == sorted(p.name for p in SWEEP)
    assert [c.variant for c in found.cells if c.error] == ["linear"]


def test_what_another_process_holds_is_left_to_it(tmp_path):
    with held(tmp_path / "cells" / SWEEP[1].name, cells.CLAIM):
        found = run(trainer := Trainer(), tmp_path)
    assert found is None
    assert not (tmp_path / "report.html").exists()
    assert len(trainer.ran) == 3
    assert run(trainer, tmp_path)
    assert trainer.ran[3:] == [SWEEP[1].name]
    with held(tmp_path, "reporting"):
        assert run(trainer, tmp_path) is None


def test_who_ends_first_tells_of_the_runs_that_failed(tmp_path):
    """Its exit code was 0: who waits for it alone heard of no failure."""
    told = "^1 of 4 runs failed: linear-0-"
    failing = Trainer(linear_0=MemoryError("no"))
    with (
        held(tmp_path / "cells" / SWEEP[1].name, cells.CLAIM),
        pytest.raises(LabError, match=told) as first,
    ):
        run(failing, tmp_path)
    assert "did not end" not in str(first.value)
    with held(tmp_path, "reporting"), pytest.raises(LabError, match=told):
        run(failing, tmp_path)


def test_trials_that_failed_are_run_again_once(tmp_path):
    rules = Fairness(search={"optimizer.learning_rate": [1e-3, 2e-3]})
    sweep = [SWEEP[0]]
    no = MemoryError("no")
    trainer = Trainer(softmax_1000000=no, softmax_0=no)  # the trials, and the run of their setting
    assert run(trainer, tmp_path, sweep, rules=rules).cells[0].error.startswith("MemoryError")
    assert len(trainer.ran) == 3
    run(trainer, tmp_path, sweep, rules=rules, retry_failed=True)
    assert len(trainer.ran) == 6
    again = Trainer()
    found = run(again, tmp_path, sweep, rules=rules, retry_failed=True)
    assert len(again.ran) == 3
    # of equal ones the first, which was told as if it had been better
    told = "learning_rate=0.001 (smallest tried), the first of 2 equal bests of 2"
    assert found.cells[0].notes["searched"] == told


def test_a_report_of_what_was_interrupted_has_the_columns_of_the_whole(tmp_path):
    """What sizes were solved to, the steps that a budget pays for, and of how many trials a setting
    was the best, were known but told only at the end."""
    rules = Fairness(budget={"steps": 3}, search={"optimizer.learning_rate": [1e-3, 2e-3]})
    stopped = Trainer(linear_1_=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(stopped, tmp_path, rules=rules)
    found = gathered(tmp_path).cells
    notes = {cell.name: cell.notes for cell in run(Trainer(), tmp_path, rules=rules).cells}
    assert len(found) == 4
    assert [cell.notes for cell in found] == [notes[cell.name] for cell in found]
    assert {*notes[found[0].name]} == {"steps", "searched"}


def test_a_trial_is_told_by_what_it_tries(tmp_path, capsys):
    # each was "run 1 of 2: softmax, seed 1000000"
    rules = Fairness(search={"optimizer.learning_rate": [1e-3, 2e-3]})
    run(Trainer(), tmp_path, SWEEP[:1], rules=rules)
    before_the_table = capsys.readouterr().out.partition("┏")[0]
    lines = [line.partition(" (")[0] for line in before_the_table.splitlines()]
    assert lines == [
        "trial 1 of 2: softmax, learning_rate=0.001",
        "trial 2 of 2: softmax, learning_rate=0.002",
        "run 1 of 1: softmax, seed 0",
    ]


class Killed(Trainer):
    def __call__(self, experiment, workdir, **options):
        if workdir.name == SWEEP[1].name:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(experiment, workdir, **options)


@pytest.mark.slow
def test_a_killed_process_is_a_row_that_says_so(tmp_path):
    found = run(Killed(), tmp_path, launch=TWO)
    errors = {c.name: c.error for c in found.cells if c.error}
    assert "its process was killed" in errors[SWEEP[1].name]
    # it "failed", as if it needed --retry_failed
    row = next(
        line for line in (tmp_path / "table.md").read_text().splitlines() if "killed" in line
    )
    assert row.startswith("| softmax, seed 1 | unfinished: its process")


def test_runs_that_did_not_end_have_not_failed(tmp_path, monkeypatch, capsys):
    errors = {"a": "unfinished: its process was killed", "b": "no", "c": None}
    found = [
        Cell(name, name, 0, {}, None if x else {"test": {"accuracy": 0.5}}, x)
        for name, x in errors.items()
    ]
    monkeypatch.setattr(compare, "compare", lambda *_, **__: types.SimpleNamespace(cells=found))
    path = write_config(tmp_path / "c.py", "sweep = lambda: [{'seed': n} for n in range(3)]\n")
    assert compare.main([f"--config={path}", f"--workdir={tmp_path}/out"]) == 1
    told = "1 of 3 runs failed: b\n  1 of 3 runs did not end, and go on by the same command: a\n"
    assert capsys.readouterr().err.endswith(told)


class Full(Trainer):
    def __call__(self, experiment, workdir, **options):
        (workdir / cells.FAILURE).with_name(f".{cells.FAILURE}.partial").mkdir()
        raise MemoryError("too large")  # which cannot be kept beside the run


@pytest.mark.slow
def test_what_ends_a_process_is_one_line_and_its_code(tmp_path, capfd):
    # it was a traceback of each, and the comparison went on without them
    with pytest.raises(workers.WorkerError, match="2 of 2 processes ended in an error") as caught:
        run(Full(), tmp_path, launch=TWO)
    assert caught.value.code == 5
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(x.startswith("error: [Errno 21] Is a directory: ") for x in lines)
    assert not (tmp_path / "report.html").exists()


class Waiting(Trainer):
    """Ends by the signal that it gets, as a run does."""

    def __call__(self, experiment, workdir, **options):
        with Signals() as signals:
            (workdir / "waiting").touch()
            while not signals.caught:
                time.sleep(0.01)
        (workdir / "saved").touch()
        raise Interrupted(signals.caught, "saved")


@pytest.mark.slow
def test_a_signal_reaches_every_process_once(tmp_path):
    def interrupt():
        while len(list(tmp_path.glob("cells/*/waiting"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupted, match="the same command goes on") as caught:
        run(Waiting(), tmp_path, launch=TWO)
    assert caught.value.code == 143
    assert len(list(tmp_path.glob("cells/*/saved"))) == 2


class Idle:
    """What a process is between runs."""

    def __call__(self, experiment, workdir, **options):
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / "waiting").touch()
        time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "saved"), [("Waiting", 2), ("Idle", 0)])
def test_processes_end_when_what_started_them_is_killed(trainer, saved, tmp_path):
    # they trained all that was left, with nobody to stop them
    program = f"""
from pathlib import Path
import test_compare
if __name__ == "__main__":
    test_compare.run(test_compare.{trainer}(), Path({str(tmp_path)!r}), launch=test_compare.TWO)
"""
    (tmp_path / "parent.py").write_text(program)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")], env={**os.environ, "PYTHONPATH": paths}
    )
    wait_until(lambda: len(list(tmp_path.glob("cells/*/waiting"))) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not held_by_any(tmp_path))
    assert len(list(tmp_path.glob("cells/*/waiting"))) == 2
    assert len(list(tmp_path.glob("cells/*/saved"))) == saved


def wait_until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def held_by_any(workdir):
    return cells.Cells(workdir, tuple(SWEEP)).held_elsewhere()


def test_a_signal_while_processes_start_reaches_the_last_and_no_more_start(monkeypatch):
    # it came before the second was there, which trained on alone
    started, told = [], []

    class Process:
        exitcode = 143

        def __init__(self, **_):
            self.pid = None

        def is_alive(self):
            return self.pid is not None

        def start(self):
            if started:
                signal.raise_signal(signal.SIGTERM)
            self.pid = len(started)
            started.append(self)

        def join(self):
            pass

    context = types.SimpleNamespace(Process=Process)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda how: context)
    monkeypatch.setattr(workers.os, "kill", lambda *what: told.append(what))
    with pytest.raises(Interrupted):
        workers.run(print, (), 3, 3)
    assert (len(started), told) == (2, [(0, signal.SIGTERM), (1, signal.SIGTERM)])


def test_a_process_that_is_told_twice_at_once_saves(tmp_path):
    """By a cluster, which stops every process of a job, and by its parent: it ended in the middle
    of a step, and the parent said that all was saved."""
    script = tmp_path / "two.py"
    script.write_text("""
import signal
from experiments import workers
from experiments.signals import Signals
def step():
    with Signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        print("saved", flush=True)
if __name__ == "__main__":
    workers.run(step, (), 1, 1)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "saved\n")
    assert done.stderr.count("once more") == 1


class Quiet:
    """A process that a closed terminal reaches."""

    exitcode = 0

    def __init__(self, **_):
        self.start = self.join = lambda: signal.raise_signal(signal.SIGHUP)


@pytest.fixture
def terminal():
    """A closed terminal ends this process, also where the tests were begun by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_what_could_not_be_saved_is_not_told_to_be(monkeypatch, terminal):
    """The process said that the disk is full, and the parent that all is saved."""
    monkeypatch.setattr(Quiet, "exitcode", CheckpointError.code)
    context = types.SimpleNamespace(Process=Quiet)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda how: context)
    monkeypatch.setattr(Quiet, "is_alive", lambda process: False, raising=False)
    with pytest.raises(workers.WorkerError, match="1 of 1 processes ended in an error") as error:
        workers.run(print, (), 1, 1)
    assert error.value.code == 4
    monkeypatch.setattr(Quiet, "exitcode", 129)  # at once, by the second signal
    with pytest.raises(Interrupted, match=r"told twice; .* from what was saved"):
        workers.run(print, (), 1, 1)


def test_under_nohup_a_closed_terminal_ends_no_process(monkeypatch):
    """It was passed on to each, which saved and ended."""
    context = types.SimpleNamespace(Process=Quiet)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda how: context)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        workers.run(print, (), 2, 2)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as a process that starts has it
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_while_processes_import_ends_them_without_a_traceback(tmp_path):
    """Each told where in JAX's imports it had come to."""
    script = tmp_path / "two.py"
    script.write_text("""
import time
from experiments import cli, workers
if __name__ == "__main__":
    two = lambda values: workers.run(print, (), 2, 2)
    raise SystemExit(cli.main(lambda values: None, two, usage="", arguments=[]))
print("importing", flush=True)
time.sleep(1)
""")
    process = subprocess.Popen(
        [sys.executable, script], stdout=-1, stderr=-1, text=True, start_new_session=True
    )
    assert process.stdout.readline().startswith("importing")  # two write at once
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (
        130,
        "SIGINT: all is saved; the same command goes on from it\n",
    )


def test_one_run_that_is_left_has_no_more_cores_than_the_others_had(monkeypatch):
    # it had them all, and its seed was dropped from the mean as of another machine
    given = []

    class Process:
        exitcode = 0

        def __init__(self, target, args):
            self.start = lambda: given.append(args[:2])
            self.join = lambda: None

    context = types.SimpleNamespace(Process=Process)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda how: context)
    monkeypatch.setattr(records, "cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(workers, "gpus", lambda: ["0", "1"])
    values = types.SimpleNamespace(slurm=[], processes=2)
    launch_of(values)(print, (), 1)
    assert given == [([0, 1], ["0"])]


@pytest.mark.slow
def test_jobs_of_a_cluster_share_the_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where a job finds Trainer
    pytest.importorskip("submitit", reason="the extra [launch]")
    local = {"cluster": "local", "timeout_min": 5}

    def jobs(work, arguments, most):
        slurm.run(work, arguments, 2, tmp_path / "slurm", local)

    found = run(Trainer(linear_0=MemoryError("no")), tmp_path, launch=jobs)
    ran = (tmp_path / "cells/ran").read_text().split()
    assert sorted(ran) == sorted(p.name for p in SWEEP)
    assert [c.variant for c in found.cells if c.error] == ["linear"]


def test_a_job_of_a_cluster_knows_what_the_file_that_was_run_adds(tmp_path):
    """Runs of a user's own mechanism failed there, each with "StopIteration: "."""
    script = tmp_path / "mine.py"
    script.write_text("""
import pickle, subprocess, sys, types
from experiments import errors, slurm
errors.MINE = "mine"  # as a mechanism is added to a table
class Executor:
    def __init__(self, folder, cluster):
        self.update_parameters = dict
    def submit(self, *called):
        job = "import pickle, sys; f, *x = pickle.load(sys.stdin.buffer); f(*x)"
        subprocess.run([sys.executable, "-c", job], input=pickle.dumps(called), check=True)
        return types.SimpleNamespace(exception=lambda: None)
def said(text):
    print(text, errors.MINE, flush=True)
if __name__ == "__main__":
    sys.modules["submitit"] = types.SimpleNamespace(AutoExecutor=Executor)
    slurm.run(said, ("it",), 2, None, {})
""")
    said = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("it mine\n" * 2, "")


@pytest.mark.parametrize(("cluster", "told"), [({}, True), ({"cluster": "local"}, False)])
def test_jobs_that_outlive_a_ctrl_c_are_named(cluster, told, tmp_path, monkeypatch, capsys):
    """All that was said was "interrupted", and the jobs trained on."""
    ids = iter(["7", "8"])

    class Executor:
        def __init__(self, folder, cluster):
            self.update_parameters = dict

        def submit(self, *called):
            return types.SimpleNamespace(job_id=next(ids), exception=self.interrupted)

        def interrupted(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=Executor))
    with pytest.raises(KeyboardInterrupt):
        slurm.run(print, (), 2, tmp_path, cluster)
    line = "the jobs that were submitted go on; to stop them: scancel 7 8\n"
    assert capsys.readouterr().err == (line if told else "")


class Warned(Trainer):
    """Is told, in a step, that its job's time will be over."""

    def __call__(self, experiment, workdir, **options):
        with Signals() as signals:
            signal.raise_signal(signal.SIGUSR2)
        raise Interrupted(signals.caught, "saved")


class Asked(Trainer):
    """Fails of something else after it was told to stop."""

    def __call__(self, experiment, workdir, **options):
        self.ran.append(workdir.name)
        with Signals():
            signal.raise_signal(signal.SIGTERM)
            raise NonFiniteError("loss is nan")


def test_no_run_begins_after_one_that_was_told_to_stop_and_failed(tmp_path):
    """The signal was forgotten with the run, and the next one began."""
    runs, asked = cells.Cells(tmp_path, tuple(SWEEP)), Asked()
    with pytest.raises(Interrupted, match="SIGTERM: the same command goes on with the others"):
        runs.work(asked, "", print)
    assert asked.ran == [SWEEP[0].name]
    assert runs.outcome(SWEEP[0]) == (None, "NonFiniteError: loss is nan")
    trainer = Trainer()
    runs.work(trainer, "", print)
    assert trainer.ran == [p.name for p in SWEEP[1:]]


def test_a_job_at_its_time_limit_saves_and_its_run_goes_on_later(tmp_path, capsys):
    """It was a failure, as was each run after it, and only --retry_failed went on with them."""

    def as_submitit(*_):
        raise RuntimeError("Job not requeued because: timed-out and not checkpointable.")

    before = {number: signal.signal(number, as_submitit) for number in slurm.WARNING}
    try:
        runs = cells.Cells(tmp_path, tuple(SWEEP))
        slurm._as_spawned({}, pickle.dumps((runs.work, (Warned(), "", print))))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert {*map(runs.outcome, SWEEP)} == {(None, None)}
    assert capsys.readouterr().err == "SIGTERM: saved\n"
    assert len(list(tmp_path.glob("cells/*"))) == 1


def test_parameters_of_a_cluster_are_read_or_refused(tmp_path):
    given = ["timeout_min=60", "slurm_partition=gpu"]
    assert slurm.settings(given) == {"timeout_min": 60, "slurm_partition": "gpu"}
    # 1.5 was refused as a text, and False taken for true
    given = ["mem_gb=1.5", "slurm_use_srun=False", "slurm_setup=['module load cuda']"]
    assert [*slurm.settings(given).values()] == [1.5, False, ["module load cuda"]]
    # a TypeError, of submitit
    assert slurm.settings(["slurm_setup=module load cuda"]) == {"slurm_setup": ["module load cuda"]}
    assert slurm.settings(["slurm_time=1-00:00:00"]) == {"slurm_time": "1-00:00:00"}
    with pytest.raises(ConfigError, match="--slurm=gpu: expected NAME=VALUE"):
        slurm.settings(["gpu"])
    # by a dry run too, which said that all could be run
    config = write_config(tmp_path / "c.py", "def sweep():\n    yield {}\n")
    dry = [f"--config={config}", f"--workdir={tmp_path}", "--dry_run", "--slurm=gpu"]
    assert compare.main(dry) == 2
    pytest.importorskip("submitit", reason="the extra [launch]")
    # and before the directory is claimed, which was then another comparison's
    for wrong in (["--slurm=cluster=local,tiem=3"], ["--slurm=cluster=nowhere", "--dry_run"]):
        assert compare.main([*dry[:1], f"--workdir={tmp_path / 'new'}", *wrong]) == 2
    assert not (tmp_path / "new").exists()
    for wrong in ({"cluster": "local", "tiem": 3}, {"cluster": "nowhere"}):
        with pytest.raises(ConfigError, match="--slurm: "):
            slurm.run(print, (), 1, tmp_path, wrong)


def test_what_a_cluster_refuses_is_a_mistake_and_no_traceback(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra [launch]")
    for name in ("srun", "sbatch"):  # the first is looked for alone
        (tmp_path / name).write_text("#!/bin/sh\necho invalid partition: gpuu >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for wrong, told in (({"slurm_partition": "gpuu"}, "gpuu"), ({"slurm_setup": "x"}, "list")):
        with pytest.raises(ConfigError, match=f"--slurm: .*{told}"):
            slurm.run(print, (), 1, tmp_path, {"cluster": "slurm", **wrong})


@pytest.mark.parametrize("coding", ["utf-8-sig", "latin-1"])
def test_a_config_is_read_in_the_coding_that_it_names(coding, tmp_path):
    # it was a traceback, where --dry_run and train took the file
    text = '# -*- coding: latin-1 -*-\n"Süß."' if coding == "latin-1" else '"Süß."'
    (tmp_path / "c.py").write_bytes(text.encode(coding))
    assert compare._about(str(tmp_path / "c.py")) == "Süß."


def test_a_report_is_about_the_first_paragraph_of_its_config(tmp_path):
    (tmp_path / "c.py").write_text('"""What is\nasked?\n\nThe command."""')
    assert compare._about(str(tmp_path / "c.py")) == "What is asked?"


def test_one_of_a_thing_is_not_many():
    said = compare._shape([Planned("", experiment())])
    assert said == "Sequences of 64, batch 4; 1 layer of width 16 with 4 heads."


def test_the_shape_of_a_report_is_that_of_all_its_runs():
    """Of configs/pathfinder.py all ten models were said to be of the first one's size."""
    models = [{"layers": 1, "heads": 4}, {"layers": 1, "heads": 1}, {"layers": 3, "heads": 2}]
    default = to_dict(experiment())
    runs = [Planned("", from_dict(default | {"model": default["model"] | x})) for x in models]
    told = "Sequences of 64, batch 4; 1 or 3 layers of width 16 with 1, 2 or 4 heads."
    assert compare._shape([*runs, *runs]) == told


def test_the_length_that_is_timed_is_the_one_that_is_trained_on():
    """And that of a state is the longest, where the report said "as long as in training"."""
    x = read(str(Path(__file__).parents[2] / "configs/extrapolation.py"))
    assert "16 (64 where held out, and for a state), batch" in compare._shape([Planned("", x)])
    assert {shape.T for _, shape, _ in layers(x)} == {16}
    assert tokens(x) == 16 * x.train.batch_size
    longest = from_dict(to_dict(x) | {"task": task("induction", length=64)})
    assert state_bytes(x) == state_bytes(longest) > 0
    assert all("of the task's length" in told for told in (NOTES["decoding"], STATE))


def test_cores_are_dealt_out():
    assert workers.shares([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3]]  # alike
    assert workers.shares([0, 1], 3) == [[0], [1], [0]]
    assert workers.shares([], 2) == [[], []]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        '{"runs"',
        "[]",
        "{}",
        '{"rules": {}}',
        '{"rules": {}, "runs": 5}',
        '{"rules": {}, "runs": {}}',
        '{"rules": 1, "runs": {}}',
        '{"runs": {}}',
        '{"rules": {}, "runs": {"a": 1}}',
        '{"rules": {}, "runs": {"a": {"variant": "a"}}}',
        '{"rules": {}, "runs": {"a": {"variant": [], "config": {}}}}',
        '{"rules": {}, "runs": {"a": {"variant": "a", "config": {"seed": []}}}}',
    ],
)
def test_a_directory_whose_sweep_cannot_be_read_is_refused(damage, tmp_path):
    run(Trainer(), tmp_path)
    (tmp_path / "sweep.json").write_text(damage)
    again = Trainer()
    with pytest.raises(RunDirectoryError, match=r"sweep\.json"):
        run(again, tmp_path, sweep=[Planned("other", experiment("linear", 7))])
    assert again.ran == []
    assert (tmp_path / "sweep.json").read_text() == damage


def test_missing_data_is_one_line_and_leaves_the_directory_free(tmp_path, capsys):
    config = Path(__file__).parents[2] / "configs/text.py:linear"
    arguments = [f"--config={config}", f"--workdir={tmp_path / 'new'}"]
    assert compare.main([*arguments, f"--config.task.data_dir={tmp_path / 'none'}"]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "none: expected the folder that holds" in err
    assert not (tmp_path / "new").exists()


def test_runs_start_from_one_that_is_at_its_end(tmp_path):
    """A typing error failed every run, and the directory was the comparison's by then; of a run
    that went on meanwhile, the seeds of one variant started from different parameters."""
    source = tmp_path / "source"
    begins = lambda p: dataclasses.replace(p.experiment, init_from=str(source))
    sweep = [dataclasses.replace(p, experiment=begins(p)) for p in SWEEP]
    start = lambda: run(Trainer(), tmp_path / "new", sweep)
    with pytest.raises(ConfigError, match=r"source: expected the folder of a run"):
        start()
    source.mkdir()
    (source / "config.json").write_text(json.dumps(to_dict(experiment())))
    with pytest.raises(ConfigError, match=r"init_from=\S+source: expected a run at its end"):
        start()
    assert not (tmp_path / "new").exists()
    (source / "result.json").write_text("{}")
    assert all(cell.result for cell in start().cells)
    # of a search every trial failed, or those that did were passed over, and a dry run saw nothing
    rules = Fairness(search={"init_from": ["", str(tmp_path / "none")]})
    for begin in (lambda *x: run(Trainer(), *x, rules=rules), lambda to, s: dry_run(s, rules, to)):
        with pytest.raises(ConfigError, match=r"init_from=\S+none: expected the folder of a run"):
            begin(tmp_path / "searched", SWEEP)
    assert not (tmp_path / "searched").exists()


def test_the_folder_of_a_comparisons_runs_is_made_neither_a_run_nor_a_comparison(
    tmp_path, monkeypatch
):
    """A `cells` within `cells`, or a run beside its own folder."""
    run(Trainer(), tmp_path)
    folder, before = tmp_path / "cells", sorted((tmp_path / "cells").iterdir())
    monkeypatch.chdir(folder)
    for name in (folder, Path(".")):
        with pytest.raises(RunDirectoryError, match="holds the runs of the comparison in"):
            run(Trainer(), name)
        with pytest.raises(RunDirectoryError, match="holds the runs of the comparison in"):
            train.run(experiment(), name, progress=False)
    assert {x.name for x in folder.iterdir()} - {x.name for x in before} <= {"lock"}


def test_a_training_run_is_not_made_a_comparison(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="single training run"):
        run(Trainer(), tmp_path)


def test_variants_are_named_as_briefly_as_tells_them_apart():
    linear, relu = mechanism("linear"), mechanism("linear", feature_map="relu")
    softmax = mechanism("softmax")
    key = "model.attention"
    assert variants([{key: softmax}, {key: linear}]) == ["softmax", "linear"]
    assert variants([{key: linear}, {key: relu}, {key: softmax}]) == [
        "linear feature_map=elu",
        "linear feature_map=relu",
        "softmax",
    ]
    assert variants([{"model.width": 32}, {"model.width": 64}]) == ["width=32", "width=64"]
    assert variants([{}, {}]) == ["all", "all"]
    assert variants([{"name": "mine", key: linear}, {key: linear}]) == ["mine", "linear"]
    stacks = [{key: [linear] * 3}, {key: [linear] * 2}, {key: [linear, softmax]}, {key: softmax}]
    assert variants(stacks) == ["linear x 3", "linear x 2", "linear softmax", "softmax"]


def test_a_bare_name_is_called_as_its_record():
    """One among records was "all", and several were "attention=softmax"."""
    values = (mechanism("linear"), "lstm", "gru", ["softmax", "window"])
    sweep = [({"model.attention": x, "seed": 0}, experiment(seed=n)) for n, x in enumerate(values)]
    names = [p.variant for p in plan(sweep)]
    assert names == ["linear", "lstm", "gru", "softmax window"]


def test_seeds_are_of_one_variant_and_twice_the_same_is_refused():
    cells = [({"seed": s}, experiment(seed=s)) for s in (0, 1)]
    assert [p.variant for p in plan(cells)] == ["all", "all"]
    with pytest.raises(ConfigError, match="more than once"):
        plan(cells + cells[:1])


def test_cell_names_are_folders_whatever_the_variant_is_called():
    name = Planned("../../etc a=1, <b>" + "x" * 200, experiment()).name
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) < 100
    assert Planned("", experiment()).name.startswith("variant-0-")


def test_mistakes_are_one_message_each(capsys, tmp_path):
    assert compare.main(["--confg=x"]) == 2
    assert compare.main([f"--config={tmp_path}/no.py", f"--workdir={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert "did you mean '--config'?" in errors
    assert "no such file" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_costs_are_kept_until_something_changes(tmp_path):
    cache = tmp_path / "costs.json"
    first = costs({"softmax": experiment()}, cache)
    assert first["softmax"]["step_flops"] > first["softmax"]["attention_flops"] > 0
    assert first["softmax"]["step_peak_bytes"] > 0
    # 2 T S N (H + D), forward; 3.5 times that with the backward pass: batch 4, length 64, width 16
    assert 2 * 64 * 64 * 2 * 16 * 4 * 3 <= first["softmax"]["attention_flops"]
    assert costs({"softmax": experiment()}, cache) == first
    edited = cache.read_text().replace('"step_ms": ', '"step_ms": 1')
    cache.write_text(edited)
    assert costs({"softmax": experiment()}, cache) != json.loads(edited)["costs"]
    disk.write_json(cache, records.sealed({"costs": first}, {"of": "this"}))
    assert report_costs._before(cache, {"of": "this"}) == first
    assert report_costs._before(cache, {"of": "another"}) is None
    for damaged in ("{", "[]", "{}"):
        cache.write_text(damaged)
        assert report_costs._before(cache, {"of": "this"}) is None


def test_attention_alone_is_under_the_mask_of_training(monkeypatch):
    """All other tests passed where causal models were timed without a mask, others with one."""
    masks = []

    def attend(mechanism, mask):
        masks.append(mask)
        raise MemoryError

    monkeypatch.setattr(cost, "attend", attend)
    for causal in (True, False):
        report_costs._attention({"softmax": experiment(causal=causal)}, [])
    assert masks == [attn.Causal(), attn.FULL]


@pytest.mark.slow
def test_what_cannot_be_measured_costs_the_others_nothing(tmp_path, monkeypatch, capsys):
    attend = cost.attend

    def scarce(mechanism, mask):
        if isinstance(mechanism, attn.Linear):
            raise MemoryError("out of [bold]memory")
        return attend(mechanism, mask)

    def step(experiment, trained):
        if experiment.seed == 7:
            raise MemoryError("out of memory")
        return Step(experiment, trained)

    monkeypatch.setattr(cost, "attend", scarce)
    monkeypatch.setattr(report_costs, "Step", step)
    chosen = {"a": experiment(), "b": experiment("linear"), "c": experiment(seed=7)}
    found = costs(chosen, tmp_path / "costs.json")
    timed = {"a": (True, True), "b": (False, True), "c": (True, False)}
    for name, (alone, step) in timed.items():
        assert ("forward_backward_ms" in found[name], "step_ms" in found[name]) == (alone, step)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert told[0].startswith("the attention of Linear(")
    assert told[0].endswith(" could not be measured: MemoryError: out of [bold]memory")
    assert told[1] == "the train step of c could not be measured: MemoryError: out of memory"
    assert not (tmp_path / "costs.json").exists()  # the next report tries again


@pytest.mark.slow
def test_a_step_is_timed_as_it_was_compiled_for_training(tmp_path):
    kept, x = Kept(), experiment()
    train.run(x, tmp_path / "run", progress=False, kept=kept)
    assert kept.get(experiment("linear")) is None
    trained = kept.get(experiment(seed=7))
    step = Step(x, trained)
    assert step.program is trained.program
    assert step.work.flops == flops(x)
    assert in_turns({"": step}, rounds=3, seconds=0)[""].minimum > 0
    state = step.learner.state_of(step.leaves)
    assert int(state.step) == step.number == 4  # a warm one, and each changed the state
    found = report_costs._steps({"softmax": x}, kept, [])["softmax"]
    assert found["step_compile_seconds"] == trained.program.compile_seconds
    assert found["step_peak_bytes"] == Step(x).program.peak_bytes


def learned_bytes(workdir):
    _, params, _ = evaluate.load(workdir)
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))


@pytest.mark.slow
def test_runs_that_differ_by_their_seed_are_compiled_once_and_come_to_the_same(tmp_path):
    """Half of the quickstart's compilations were of programs that the process had."""
    kept = Kept()
    counts, states = [], []
    for seed in (0, 1):
        x = experiment(seed=seed)
        train.run(x, tmp_path / f"{seed}", progress=False, kept=kept)
        train.run(x, tmp_path / f"{seed} alone", progress=False)
        counts.append(len(kept.programs()))
        states += [learned_bytes(tmp_path / name) for name in (f"{seed}", f"{seed} alone")]
    assert counts == [3, 3]  # the first state, a step, an evaluation
    assert states[0] == states[1] != states[2] == states[3]
    for seed in (0, 1):
        dropped = experiment(seed=seed, dropout=0.5)
        train.run(dropped, tmp_path / f"dropout {seed}", progress=False, kept=kept)
        counts.append(len(kept.programs()))
    assert counts[2:] == [4, 4]


def test_few_programs_are_kept(monkeypatch):
    monkeypatch.setattr(experiments.kept, "MOST", 2)
    kept = Kept()
    for name in ("softmax", "linear", "softmax", "linformer"):
        kept.add(types.SimpleNamespace(experiment=experiment(name)), name)
    found = [kept.get(experiment(name)) for name in ("softmax", "linear", "linformer")]
    assert [x and x.program for x in found] == ["softmax", None, "linformer"]
    kept.programs().update({(n,): n for n in range(9)})
    assert [*kept.programs().values()] == [3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_the_whole_path_on_real_digits(tmp_path, capsys, monkeypatch):
    config = tmp_path / "tiny.py"
    config.write_text(
        '''"""Two on digits."""
from experiments.config import mechanism, task

def get_config():
    return {
        "task": task("digits"),
        "model": {"layers": 1, "width": 16},
        "optimizer": {"learning_rate": 1e-3},
        "train": {"steps": 3, "batch_size": 4, "eval_every": 2},
    }

def sweep():
    for name in ("softmax", "linformer"):
        yield {"model.attention": mechanism(name)}
'''
    )
    arguments = [f"--config={config}", f"--workdir={tmp_path}/out"]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert compare.main([*arguments, "--dry_run"]) == 0
    monkeypatch.delenv("FORCE_COLOR")
    listed = capsys.readouterr().out
    assert "a few steps of linformer (2 of 2)" in listed
    assert listed.count("to run") == 2
    assert "TFLOP" in listed
    assert not list((tmp_path / "out").glob("cells/*"))
    (tmp_path / "file").write_text("")
    assert compare.main([arguments[0], f"--workdir={tmp_path}/file", "--dry_run"]) == 5
    assert f"{tmp_path}/file is a file; give another --workdir" in capsys.readouterr().err
    assert compare.main(arguments) == 0
    assert "softmax" in capsys.readouterr().out
    assert "Two on digits." in (tmp_path / "out/report.html").read_text()
    # the learning rate is no number that training survives: both fail, and say so
    failing = [*arguments[:1], f"--workdir={tmp_path}/bad", "--config.optimizer.learning_rate=1e30"]
    assert compare.main([*failing, "--config.optimizer.clip_norm=None"]) == 1
    assert "2 of 2 runs failed" in capsys.readouterr().err
    assert compare.main([*failing, "--config.optimizer.clip_norm=None", "--dry_run"]) == 0
    assert [line[:6] for line in capsys.readouterr().out.splitlines()] == ["failed", "failed"]
