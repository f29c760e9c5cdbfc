"""A run that is stopped and started again is the run that was never stopped."""

import collections
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_experiment import STEPS, TINY, rows, state_digest, tiny, write_config

from experiments import loop, running, signals, train
from experiments.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Interrupted,
    NonFiniteError,
    RetraceError,
    RunDirectoryError,
)
from experiments.evaluate import Answers, load
from experiments.records import (
    other_hardware,
    read_metrics,
    repair_metrics,
    sealed,
    write_environment,
)
from experiments.tasks import Batch, Recall
from experiments.validation import from_dict

# runs are compared bit for bit with those of other processes and of a whole module
pytestmark = [pytest.mark.optimised, pytest.mark.usefixtures("compiled_once")]

ROOT = Path(__file__).parents[2]


def stop_at(steps: set[int], number: signal.Signals, monkeypatch) -> None:
    """Sends this process a signal in the middle of each of these steps."""
    make = loop.Session._train

    def step(session, *batches):
        if session.step in steps and session.step > session.first:
            steps.discard(session.step)
            signal.raise_signal(number)
        return make(session, *batches)

    monkeypatch.setattr(loop.Session, "_train", step)


def test_the_next_batch_is_drawn_while_a_step_is_made(tmp_path: Path, monkeypatch):
    # on a CPU the step may be made in the thread that asks for it
    drawn = {step: threading.Event() for step in range(STEPS)}
    make, draw = loop.Session._train, loop.Session._batch

    def batch(session, step):
        drawn[step].set()
        return draw(session, step)

    def step_that_waits(session, batches, steps):
        assert drawn[min(session.step, STEPS - 1)].wait(60)
        return make(session, batches, steps)

    monkeypatch.setattr(loop.Session, "_batch", batch)
    monkeypatch.setattr(loop.Session, "_train", step_that_waits)
    assert train.run(tiny(), tmp_path, progress=False)["steps"] == STEPS


def test_all_batches_of_a_run_are_drawn_by_one_thread(tmp_path: Path, monkeypatch):
    # a context of JAX is its thread's: a run that goes on would draw in another one
    threads, draw = set(), loop.Session._batch

    def batch(session, step):
        threads.add(threading.current_thread().name)
        return draw(session, step)

    monkeypatch.setattr(loop.Session, "_batch", batch)
    train.run(tiny(), tmp_path, progress=False)
    assert len(threads) == 1


def test_stopped_at_any_step_it_ends_the_same(whole: Path, tmp_path: Path, monkeypatch):
    # after one step, at an evaluation, at a save, at the last step but one
    points = {1, 4, 5, STEPS - 1}
    stop_at(set(points), signal.SIGTERM, monkeypatch)
    for point in sorted(points):
        with pytest.raises(Interrupted, match=f"SIGTERM: step {point} of ") as stopped:
            train.run(tiny(), tmp_path, progress=False, command=str(point))
        assert stopped.value.code == 143
    result = train.run(tiny(), tmp_path, progress=False, command="last")
    last = json.loads((tmp_path / "environment.json").read_text())
    assert [x["command"] for x in (*last["earlier"], last)] == ["1", "4", "5", "11", "last"]
    assert all("earlier" not in x and x["hardware"] for x in last["earlier"])
    assert rows(tmp_path) == rows(whole)
    assert state_digest(tmp_path) == state_digest(whole)
    expected = json.loads((whole / "result.json").read_text())
    same = ("validation", "test", "best_step", "parameters", "baselines")
    assert {k: result[k] for k in same} == {k: expected[k] for k in same}


@pytest.mark.parametrize("look", range(2, 7))
def test_stopped_between_any_two_looks_for_signals_it_has_all_rows(
    look, whole: Path, tmp_path: Path, monkeypatch
):
    """After the look that decides on saving, the state was saved without the last steps' rows."""

    class Late(signals.Signals):
        looks = 0

        @property
        def caught(self):
            self.looks += 1
            return signal.SIGTERM if self.looks >= look else None

        caught = caught.setter(lambda self, value: None)

    monkeypatch.setattr(loop, "LOOK", 1e9)
    with monkeypatch.context() as once:
        once.setattr(running, "Signals", Late)
        with pytest.raises(Interrupted):
            train.run(tiny(), tmp_path, progress=False)
    train.run(tiny(), tmp_path, progress=False)
    assert rows(tmp_path) == rows(whole)


@pytest.mark.slow
def test_several_steps_in_a_call_are_those_of_as_many_calls(tmp_path: Path, monkeypatch):
    plain = tiny(train={"save_every": 4})
    several = tiny(train={"save_every": 4, "steps_per_call": 5})
    assert (plain.train.together, several.train.together) == (1, 4)
    train.run(plain, tmp_path / "plain", progress=False)
    train.run(several, tmp_path / "whole", progress=False)
    for one, other in zip(rows(tmp_path / "plain"), rows(tmp_path / "whole"), strict=True):
        compare = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        jax.tree.map(compare, one, other)
    stop_at({4, 8}, signal.SIGTERM, monkeypatch)
    for point in (4, 8):
        with pytest.raises(Interrupted, match=f"SIGTERM: step {point} of "):
            train.run(several, tmp_path / "stopped", progress=False)
    train.run(several, tmp_path / "stopped", progress=False)
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    digests = {state_digest(tmp_path / name, several) for name in ("stopped", "whole")}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("most", "steps", "eval_every", "save_every", "found"),
    [
        (1, 12, 4, 4, 1),
        (9, 12, 4, 4, 4),
        (3, 12, 4, 4, 2),
        (9, 12, 4, 5, 1),
        (10, 2000, 500, 1000, 10),
    ],
)
def test_a_call_ends_where_the_run_looks(most, steps, eval_every, save_every, found):
    sizes = {"steps": steps, "eval_every": eval_every, "save_every": save_every}
    assert tiny(train={**sizes, "steps_per_call": most}).train.together == found


@pytest.mark.slow
def test_going_on_with_other_hardware_is_told(tmp_path: Path, monkeypatch, capsys):
    stop_at({5}, signal.SIGTERM, monkeypatch)
    with pytest.raises(Interrupted):
        train.run(tiny(), tmp_path, progress=False)
    path = tmp_path / "environment.json"
    environment = json.loads(path.read_text())
    assert other_hardware(path) == other_hardware(tmp_path / "none") == ""
    used = environment["hardware"].pop("cores_used")
    path.write_text(json.dumps(environment))
    assert other_hardware(path) == ""  # as the first records
    environment["hardware"]["cores_used"] = used + 1
    path.write_text(json.dumps(environment))
    assert "before" not in capsys.readouterr().err
    train.run(tiny(), tmp_path, progress=False)
    told = f"on {used} core{'s' * (used > 1)}, {used + 1} before: not bit-identical to a run on"
    assert f"{told} as many" in capsys.readouterr().err
    environment["hardware"]["cores_used"] = 2
    path.write_text(json.dumps(environment))
    monkeypatch.setattr("experiments.records.cores", lambda: [0])
    assert other_hardware(path).startswith("on 1 core, 2 before")
    # as many as the host is asked for, by which a batch and the sum of its gradients are split
    environment["hardware"]["devices"] += 1
    path.write_text(json.dumps(environment))
    assert other_hardware(path).startswith("on 1 device, 2 before, on 1 core, 2 before: not bit-")
    environment["hardware"]["device"] = "NVIDIA H100"
    path.write_text(json.dumps(environment))
    assert other_hardware(path).startswith("on cpu, NVIDIA H100 before: not bit-identical to a run")


@pytest.mark.parametrize("edited", ["x", None, 5])
def test_an_environment_that_was_edited_stops_no_run(edited, tmp_path: Path):
    path = tmp_path / "environment.json"
    path.write_text(json.dumps({"hardware": edited}))
    assert other_hardware(path) == ""
    write_environment(path, "it", source={})
    assert json.loads(path.read_text())["earlier"] == [{"hardware": edited}]


def test_a_directory_that_is_a_file_is_told(tmp_path: Path):
    """It was: cannot be written to: [Errno 17] File exists."""
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="file is a file; give another --workdir"):
        train.run(tiny(), tmp_path / "file", progress=False)


def test_a_folder_above_that_is_none_is_told(tmp_path: Path):
    """It was File exists, also for a link to a disk that is not mounted."""
    (tmp_path / "runs").symlink_to("/not/mounted")
    (tmp_path / "file").touch()
    told = {"runs": "a link to /not/mounted, which is none", "file": "a file"}
    for name, got in told.items():
        with pytest.raises(RunDirectoryError, match=f"expected a folder, got {got}: .*{name}'"):
            train.run(tiny(), tmp_path / name / "digits", progress=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a\\b", "expected a path without a backslash"), ("a\udcff", "expected a path in UTF-8")],
)
def test_a_path_that_holds_no_checkpoint_is_refused_before_anything_is_done(
    name: str, expected: str, tmp_path: Path
):
    with pytest.raises(RunDirectoryError, match=expected):
        train.run(tiny(), tmp_path / name, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_only_reports(whole: Path):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "lock"}
    assert train.run(tiny(), whole, progress=False) == json.loads(
        (whole / "result.json").read_text()
    )
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_the_answers_of_each_row_are_kept_and_not_printed(whole: Path, tmp_path: Path, capsys):
    """They filled the screen."""
    config = write_config(tmp_path / "c.py")
    assert train.main([f"--config={config}", f"--workdir={whole}"]) == 0
    result = json.loads((whole / "result.json").read_text())
    for split in ("validation", "test"):
        assert len(result[split].pop("by_row")["right"].split()) == 20
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.slow
def test_a_result_that_was_edited_or_is_another_runs_is_made_again(whole: Path, tmp_path: Path):
    shutil.copytree(whole, tmp_path / "edited")
    path = tmp_path / "edited" / "result.json"
    written = json.loads(path.read_text())
    wrong = {k: v for k, v in written.items() if k not in ("config", "sha256")}
    wrong["test"] = written["test"] | {"accuracy": 1.0}
    for content in (written | wrong, wrong, sealed(wrong, {"another": "run's"})):
        path.write_text(json.dumps(content))
        assert train.run(tiny(), tmp_path / "edited", progress=False)["test"] == written["test"]
        assert json.loads(path.read_text())["test"] == written["test"]


def unfinished(whole: Path, workdir: Path) -> Path:
    """A copy of a whole run as it was before it wrote its result."""
    shutil.copytree(whole, workdir)
    (workdir / "result.json").unlink()
    return workdir


def test_metrics_are_not_erased_where_checkpoints_were_lost(whole: Path, tmp_path: Path, capfd):
    workdir = unfinished(whole, tmp_path / "run")
    metrics = workdir / "metrics.jsonl"
    written = metrics.read_text()
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(CheckpointError, match="goes to step 12, but there is no check") as error:
        train.run(tiny(), workdir, progress=False)
    assert error.value.code == 4
    assert "remove the metrics" in str(error.value)
    assert metrics.read_text() == written
    # a kill before the first save leaves as many
    metrics.write_text("".join(written.splitlines(keepends=True)[:4]))
    train.run(tiny(), workdir, progress=False)
    assert "steps 1 to 4 are made again" in capfd.readouterr().err
    assert rows(workdir) == rows(whole)


@pytest.mark.parametrize("kept", [0, 9])
def test_rows_that_are_missing_are_named(kept: int, whole: Path, tmp_path: Path, capfd):
    workdir = unfinished(whole, tmp_path / "run")
    metrics = workdir / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:kept]))
    if not kept:
        metrics.unlink()
    train.run(tiny(), workdir, progress=False)
    assert f"lacks {STEPS - kept} of the rows up to step {STEPS}" in capfd.readouterr().err


def test_a_run_leaves_its_records(whole: Path):
    found = rows(whole)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert [row["step"] for row in found if "validation" in row] == [4, 8, 12]
    assert set(found[3]["validation"]["slices"]) == {"1 pair", "2 pairs"}
    best = max(found[3::4], key=lambda row: row["validation"]["accuracy"])
    result = json.loads((whole / "result.json").read_text())
    assert result["best_step"] == best["step"]
    assert result["validation"]["accuracy"] == best["validation"]["accuracy"]
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["versions"]["jax"] == jax.__version__
    assert environment["source"] == {}  # all is of this repository
    learner, params, step = load(whole)
    again = Answers.of(jax.jit(learner.eval_step), params, learner.experiment.task, "test", 16)
    assert step == result["best_step"]
    assert again.scores() | {"by_row": again.by_row()} == result["test"]


@pytest.mark.slow
def test_what_was_answered_is_not_asked_again(tmp_path: Path, monkeypatch):
    asked, answers = [], loop.Session._answers

    def listen(session, split, state):
        asked.append(split)
        return answers(session, split, state)

    monkeypatch.setattr(loop.Session, "_answers", listen)
    result = train.run(tiny(), tmp_path / "run", progress=False)
    assert asked == ["validation"] * 3 + ["test"]
    with monkeypatch.context() as forgetful:  # as a session that went on after the best step is
        nothing = property(lambda _: None, lambda *_: None)
        forgetful.setattr(loop.Session, "validated", nothing, raising=False)
        again = train.run(tiny(), tmp_path / "again", progress=False)
    assert asked[4:] == ["validation"] * 4 + ["test"]
    assert again["validation"] == result["validation"]


@pytest.mark.slow
def test_a_run_compiles_each_step_once(tmp_path: Path):
    found = collections.Counter()

    def listen(event: str, seconds: float, *, fun_name: str = "", **_: object) -> None:
        if re.fullmatch(r"(jit\()?(train_steps|eval_step)\)?", fun_name):
            found[event.rpartition("/")[2], fun_name] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        train.run(tiny(), tmp_path, progress=False)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert {"jit(train_steps)", "jit(eval_step)"} <= {name for _, name in found}
    assert set(found.values()) == {1}, found  # traced, lowered and compiled


def test_a_retrace_is_an_error_that_names_what_changed(tmp_path: Path, monkeypatch):
    draw = Recall.batch

    def narrower(task: Recall, seed: int, step: int, batch_size: int) -> Batch:
        batch, kind = draw(task, seed, step, batch_size), np.int8 if step >= 2 else np.int32
        return dataclasses.replace(
            batch, tokens=batch.tokens.astype(kind), labels=batch.labels.astype(kind)
        )

    monkeypatch.setattr(Recall, "batch", narrower)
    with pytest.raises(RetraceError, match="train_steps is compiled once") as error:
        train.run(tiny(), tmp_path, progress=False)
    _, *changed = str(error.value).splitlines()
    assert [line.strip() for line in changed] == [
        "batches.tokens: int32[1, 8, 12] was compiled, int8[1, 8, 12] came",
        "batches.labels: int32[1, 8, 12] was compiled, int8[1, 8, 12] came",
    ]


def later(task: Recall, seed: int, step: int, batch_size: int, draw=Recall.batch) -> Batch:
    """Tokens that are none from the second step on."""
    batch = draw(task, seed, step, batch_size)
    return dataclasses.replace(batch, tokens=batch.tokens + 32 * (step > 0))


@pytest.mark.parametrize(("name", "wrong"), [("batch", later), ("classes", 4)])
def test_batches_that_are_out_of_range_are_refused(name, wrong, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Recall, name, wrong)
    told = r"in the task:\n  (tokens|labels): expected integers in 0..(31|3), got"
    with pytest.raises(ConfigError, match=told):
        train.run(tiny(), tmp_path, progress=False)


def test_a_task_that_leaves_no_row_to_train_on_is_refused(tmp_path: Path, capsys):
    """It was a traceback, where training rows are first drawn for the fingerprint of the data."""
    config, few = write_config(tmp_path / "few.py"), "--config.task.length=4"
    rows = [few, "--config.task.vocab_size=6", "--config.task.pairs=(1,)"]
    assert train.main([f"--config={config}", *rows, f"--workdir={tmp_path}/run"]) == 2
    assert "a tenth of those there are is left to train on" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["a third", None, float("nan"), 33.0, np.ones(3)])
def test_a_baseline_that_is_no_accuracy_is_refused_before_a_step(value, tmp_path, monkeypatch):
    """It ended the run after its last step, or later the report of all."""
    monkeypatch.setattr(Recall, "baselines", lambda self: {"chance": value})
    with pytest.raises(ConfigError, match=r"baselines: chance: expected an accuracy, .*, got"):
        train.run(tiny(), tmp_path, progress=False)
    assert not (tmp_path / "config.json").exists()
    monkeypatch.setattr(Recall, "baselines", lambda self: {"chance": np.float32(0.5)})
    assert json.dumps(tiny().posed.accuracies()) == '{"chance": 0.5}'


@pytest.mark.parametrize(("method", "told"), [("batch", "batch"), ("examples", "validation")])
def test_a_task_that_draws_other_rows_each_time_is_refused(method, told, tmp_path, monkeypatch):
    """It trained, and went on after a stop on others; its test rows were paired all the same."""
    true, times = getattr(Recall, method), itertools.count()

    def drawn(self, *args):
        batch = true(self, *args)
        return dataclasses.replace(batch, labels=np.full_like(batch.labels, next(times) % 32))

    monkeypatch.setattr(Recall, method, drawn)
    with pytest.raises(ConfigError, match=rf"{told}: labels: expected the same whenever a row"):
        train.run(tiny(), tmp_path, progress=False)


def test_a_split_that_asks_for_nothing_is_refused(tmp_path: Path):
    """It trained up to a validation loss that was not finite."""
    rows = {"name": "stack", "length": 2, "validation": 1, "test": 1}  # which pops nothing
    few = from_dict({**TINY, "task": rows})
    with pytest.raises(ConfigError, match="validation: expected a label that counts"):
        train.run(few, tmp_path, progress=False)


def test_another_configuration_is_refused_by_its_fields(whole: Path):
    with pytest.raises(RunDirectoryError, match=r"model\.layers: 1 there, 2 here") as error:
        train.run(tiny(model={"layers": 2}), whole, progress=False)
    assert error.value.code == 5


def test_a_directory_in_use_is_refused_by_its_holder(tmp_path: Path):
    from experiments.rundir import claimed

    with claimed(tmp_path, tiny()):
        with pytest.raises(RunDirectoryError, match=f"pid {os.getpid()} on ") as error:
            train.run(tiny(), tmp_path, progress=False)
        assert error.value.code == 5


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        train.run(tiny(), tmp_path / "file" / "run", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gradient", "parameter"])
def test_a_number_that_is_not_finite_stops_the_run(how: str, tmp_path: Path, monkeypatch):
    # parameters that are nan at step 8, and a learning rate that throws them out of range
    experiment = tiny()
    make = loop.Session.__init__

    def poisoned(session, *args, **kwargs):
        make(session, *args, **kwargs)
        make_steps = session.train_steps

        def poisoned(leaves, batches, steps, seed):
            if 7 in steps:
                state = session.learner.state_of(leaves)
                bad = jax.tree.map(lambda x: x * np.float32(np.nan), state.params)
                leaves = jax.tree.leaves(dataclasses.replace(state, params=bad))
            return make_steps(leaves, batches, steps, seed)

        session.train_steps = poisoned

    monkeypatch.setattr(loop.Session, "__init__", poisoned)
    if how == "parameter":
        monkeypatch.undo()
        experiment = tiny(optimizer={"learning_rate": 1e37, "weight_decay": 1e4})
    with pytest.raises(NonFiniteError) as error:
        train.run(experiment, tmp_path, progress=False)
    assert error.value.code == 3
    step = {"gradient": 8, "parameter": 1}[how]
    assert f"step {step}: " in str(error.value)
    assert {"gradient": "loss", "parameter": "updated parameter "}[how] in str(error.value)
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, step))


def test_metrics_are_repaired(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = ['{"step": 1}', '{"step": 2}', '{"ste', '{"step": 2}', '{"step": 3}', '{"step": 4}']
    path.write_text("\n".join(lines) + '\n{"step": 5, "lo')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 2, 3, 4]
    repair_metrics(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


@pytest.mark.slow
def test_a_signal_to_the_process_saves_and_the_same_command_goes_on(whole: Path, tmp_path: Path):
    config, workdir = write_config(tmp_path / "c.py"), tmp_path / "run"
    # Ten steps a second, so that the signal comes in between.
    slow = (
        "import sys, time; from experiments import loop, train\n"
        "make = loop.Session._batch\n"
        "loop.Session._batch = lambda s, n: time.sleep(0.1) or make(s, n)\n"
        "loop.LOOK = 0\n"
        "sys.exit(train.main())"
    )
    arguments = [sys.executable, "-c", slow, f"--config={config}", f"--workdir={workdir}"]
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not (workdir / "metrics.jsonl").exists() or not rows(workdir):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    message = process.communicate(timeout=300)[1]
    assert process.returncode == 143, message
    assert "SIGTERM: step " in message
    assert "Traceback" not in message
    assert 0 < len(rows(workdir)) < STEPS
    train.run(tiny(), workdir, progress=False)
    assert rows(workdir) == rows(whole)
    assert state_digest(workdir) == state_digest(whole)


@pytest.mark.slow
def test_two_devices_go_on_with_what_one_began(whole: Path, tmp_path: Path, monkeypatch):
    stop_at({4}, signal.SIGTERM, monkeypatch)
    with pytest.raises(Interrupted):
        train.run(tiny(), tmp_path / "run", progress=False)
    config = write_config(tmp_path / "c.py")
    module = [sys.executable, "-m", "experiments.train", f"--config={config}"]
    two = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*module, f"--workdir={tmp_path / 'run'}"],
        cwd=ROOT,
        env=two,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["hardware"]["devices"] == 2
    for one, other in zip(rows(whole), rows(tmp_path / "run"), strict=True):
        assert one["step"] == other["step"]
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)
        np.testing.assert_allclose(one["gradient_norm"], other["gradient_norm"], rtol=1e-4)


def test_what_only_shows_when_the_model_is_built_is_a_mistake_too(tmp_path: Path, monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("softmax: cannot do this")

    with monkeypatch.context() as patch:
        patch.setattr("attn.nn.encoder.Encoder.__call__", refuse)
        with pytest.raises(ConfigError, match="softmax: cannot do this"):
            train.run(tiny(), tmp_path, progress=False)
    listops = from_dict({**TINY, "task": {"name": "listops", "data_dir": "/none"}})
    with pytest.raises(DataError, match=r"basic_val\.tsv"):
        train.run(listops, tmp_path, progress=False)
    # The directory is still free for whatever is put right.
    assert not (tmp_path / "config.json").exists()
