"""Whatever ends a run, wherever: the same command goes on, and ends as if nothing had been."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_experiment import STEPS, rows, state_digest, tiny

from experiments import disk, loop, manifest, train
from experiments.checkpoint import Checkpoints
from experiments.errors import CheckpointError, Interrupted, LabError, RunDirectoryError
from experiments.lock import LOCK, held
from experiments.records import read_metrics, repair_metrics
from experiments.signals import Signals
from experiments.validation import to_dict

pytestmark = [pytest.mark.optimised, pytest.mark.usefixtures("compiled_once")]
ROOT = Path(__file__).parents[2]


class Crash(BaseException):
    """Nothing catches it, so nothing is saved."""


@pytest.fixture(scope="module", autouse=True)
def steps_are_shared():
    """Each session here has the same two compiled steps; they are pure."""
    make, steps = loop.Session._compile, {}

    def compiled(session):
        if not steps:
            make(session)
            steps.update(train_steps=session.train_steps, eval_step=session.eval_step)
        vars(session).update(steps, compiling=0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Session, "_compile", compiled)
        yield


OWNERS = {
    "session": loop.Session,
    "checkpoints": Checkpoints,
    "loop": loop,
    "manifest": manifest,
    "disk": disk,
}


def at_call(number: int, of: str, do: Callable[[], None], patch) -> None:
    """`do` just before the so-manieth call of a function."""
    place, _, name = of.rpartition(".")
    owner = OWNERS[place]
    function, calls = getattr(owner, name), []

    def counted(*args, **kwargs):
        calls.append(name)
        if len(calls) == number:
            do()
        return function(*args, **kwargs)

    patch.setattr(owner, name, counted)


def crash() -> None:
    raise Crash


def ends_as(whole: Path, workdir: Path, **sections) -> None:
    result = train.run(tiny(**sections), workdir, progress=False)
    assert rows(workdir) == rows(whole)
    assert state_digest(workdir, tiny(**sections)) == state_digest(whole)
    expected = json.loads((whole / "result.json").read_text())
    same = ("validation", "test", "best_step")
    assert {k: result[k] for k in same} == {k: expected[k] for k in same}


POINTS = {
    "after one step": ("session._train", 2),
    "in an evaluation": ("session._answers", 1),
    "before a manifest": ("manifest.write", 2),
    "after a checkpoint has its name": ("checkpoints._best_of", 1),
    "before the last step": ("session._train", STEPS),
    "before the last checkpoint": ("manifest.write", 5),
    "before the result": ("session._finish", 1),
    "while the result is written": ("disk.write_json", 7),
}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_changes_nothing(point: str, whole: Path, tmp_path: Path, monkeypatch):
    of, number = POINTS[point]
    with monkeypatch.context() as patch:
        at_call(number, of, crash, patch)
        with pytest.raises(Crash):
            train.run(tiny(), tmp_path, progress=False)
    ends_as(whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "point"),
    [
        ("SIGINT", 130, "in an evaluation"),
        ("SIGINT", 130, "before a manifest"),
        ("SIGTERM", 143, "before the result"),
    ],
)
def test_a_signal_anywhere_is_obeyed(
    name: str, code: int, point: str, whole: Path, tmp_path: Path, monkeypatch
):
    of, number = POINTS[point]
    with monkeypatch.context() as patch:
        at_call(number, of, lambda: signal.raise_signal(getattr(signal, name)), patch)
        with pytest.raises(Interrupted, match=name) as stopped:
            train.run(tiny(), tmp_path, progress=False)
    assert stopped.value.code == code
    ends_as(whole, tmp_path)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_second_signal_ends_the_process_at_once(name: str, code: int):
    program = f"""
import signal
from experiments.signals import Signals
signal.signal(signal.{name}, signal.SIG_DFL)  # tests too may be run by nohup
with Signals() as signals:
    signal.raise_signal(signal.{name})
    print(signals.caught == signal.{name}, flush=True)
    signal.raise_signal(signal.{name})
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "True\n")
    assert "once more to stop at once" in done.stderr


def test_a_second_signal_in_a_long_step_ends_the_process_at_once():
    # of a CPU: the thread that handles signals was in it, and heard of both when it was over
    program = """
import hashlib, os, signal, threading, time
from experiments.signals import Signals
def twice():
    for _ in range(2):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=twice, daemon=True).start()
with Signals():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes, without looking at signals
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 143
    assert done.stderr.count("once more to stop at once") == 1


def test_nothing_is_left_of_those_who_listened_for_signals():
    handles = lambda: set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    before = handles(), threading.active_count(), signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
    after = handles(), threading.active_count(), signal.getsignal(signal.SIGTERM)
    assert (signals.caught, after) == (signal.SIGTERM, before)


def test_a_signal_to_a_fork_is_none_to_this_process():
    # a pool of processes that a task of the user's own draws with is ended by SIGTERM
    program = """
import os, signal, time
from experiments.signals import Signals
with Signals() as signals:
    if not os.fork():
        signal.raise_signal(signal.SIGTERM)
        os._exit(signals.caught)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    signal.raise_signal(signal.SIGINT)
    print(signals.caught)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "15\n2\n")


def test_under_nohup_a_closed_terminal_asks_for_nothing():
    # a terminal that was closed ended a run before it had saved; now it asks, but where told not to
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.caught is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reader_that_has_gone_is_no_error():
    # Ctrl-C ended the `tee` that stderr went to, and the run failed before it had saved
    program = """
import os, signal
read, write = os.pipe()
os.dup2(write, 2)
os.close(read)
from experiments.display import Display
from experiments.signals import Signals
with Signals() as signals, Display(total=2, shown=True) as display:
    signal.raise_signal(signal.SIGINT)
    display.update(1, {"loss": 1.0, "accuracy": 0.5}, rate=1.0)
    display.tell("going on")
    display.warn("no checkpoint was saved")
    print(signals.caught == signal.SIGINT)
from experiments import cli
print(cli.main(lambda values: None, print, usage="", arguments=["--unknown"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True\n2\n"


def test_what_was_closed_leads_nowhere(tmp_path: Path):
    # `train ... 2>&-` ended before its first step, with nothing said
    program = """
import os, sys
from experiments import cli
from experiments.display import Display
from experiments.say import say_at_once
from experiments.stdout import tell
def run(values):
    with open(sys.argv[1], "w") as file, Display(total=2, shown=True) as display:
        display.update(1, {"loss": 1.0, "accuracy": 0.5}, rate=1.0)
        say_at_once(b"stopping")
        tell("done")
        file.write("kept")
sys.exit(cli.main(lambda values: None, run, usage="", arguments=[]))
"""
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    command = [*closing, sys.executable, "-c", program, str(tmp_path / "file")]
    assert subprocess.run(command, cwd=ROOT).returncode == 0
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pipe", "disk"])
def test_who_reads_what_is_printed_may_go_away(end):
    # `compare ... | head -1` ended after one run
    program = f"""
import os, sys
from experiments import cli, compare
from experiments.stdout import tell
if {end!r} == "pipe":
    read, write = os.pipe()
    os.close(read)
else:
    write = os.open("/dev/full", os.O_WRONLY)
os.dup2(write, 1)
def run(values):
    for write in (compare._tell, tell):
        write("run 1 of 2")
        sys.stderr.write("going on\\n")
sys.exit(cli.main(lambda values: None, run, usage="", arguments=[]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    wanted = "going on\n" * 2, 0
    if end == "disk":
        wanted = "error: [Errno 28] No space left on device: 'stdout'\n", 5
    assert (done.stderr, done.returncode) == wanted


@pytest.mark.slow
def test_a_letter_that_stdout_lacks_is_no_error():
    """A comparison of hours ended in a traceback at the first ± of its table."""
    program = """
from experiments import compare
from experiments.stdout import tell
for write in (compare._tell, tell):
    write("3 \u00b1 1")
"""
    command = [sys.executable, "-c", program]
    ascii_alone = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=ascii_alone, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3 \\xb1 1\n" * 2, "")


@contextlib.contextmanager
def failing_saves(steps: set[int]) -> Iterator[None]:
    """The disk is full whenever one of these is saved."""
    write = manifest.write

    def full(folder: Path, body: dict) -> None:
        if body["step"] in steps:
            raise OSError(28, "No space left on device")
        write(folder, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "write", full)
        yield


@pytest.mark.slow
def test_a_failed_save_ends_the_run_or_not_as_is_said(whole: Path, tmp_path: Path, capfd):
    go_on = {"on_save_error": "continue"}
    with failing_saves({4, 5, 10}):
        ends_as(whole, tmp_path / "on", train=go_on)
    assert capfd.readouterr().err.count("No space left on device; going on without it") == 3

    with failing_saves({5}), pytest.raises(CheckpointError, match="No space left") as error:
        train.run(tiny(), tmp_path / "stop", progress=False)
    assert error.value.code == 4
    assert Checkpoints.of(tmp_path / "stop", tiny()).steps() == [4]
    ends_as(whole, tmp_path / "stop")

    # a run that could not be kept is not finished, whatever is said
    with failing_saves({STEPS}), pytest.raises(CheckpointError):
        train.run(tiny(train=go_on), tmp_path / "last", progress=False)
    assert not (tmp_path / "last" / "result.json").exists()
    ends_as(whole, tmp_path / "last", train=go_on)


@pytest.mark.slow
def test_a_full_disk_in_the_middle_is_one_clear_error(whole: Path, tmp_path: Path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # the metrics have more already, and what is appended is cut in a line
    size = len(json.dumps(rows(whole)[0])) * 4
    fill = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with monkeypatch.context() as patch:
            at_call(7, "session._train", fill, patch)
            with pytest.raises(LabError) as error:
                train.run(tiny(), tmp_path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(error.value, RunDirectoryError | CheckpointError), error.value
    ends_as(whole, tmp_path)


@pytest.mark.slow
def test_a_directory_that_vanishes_is_one_clear_error(tmp_path: Path, monkeypatch):
    at_call(7, "session._train", lambda: shutil.rmtree(tmp_path / "run"), monkeypatch)
    with pytest.raises(RunDirectoryError, match="cannot be written to") as error:
        train.run(tiny(), tmp_path / "run", progress=False)
    assert error.value.code == 5
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["directory", "lock"])
def test_a_directory_that_is_replaced_is_not_written_to(what: str, tmp_path: Path, monkeypatch):
    run, before = tmp_path / "run", []

    def replace():
        if what == "directory":
            run.rename(tmp_path / "moved")
        else:
            (run / LOCK).unlink()
        other.enter_context(held(run))
        before.append(read(run))

    with contextlib.ExitStack() as other:
        at_call(7, "session._train", replace, monkeypatch)
        with pytest.raises(RunDirectoryError, match="removed or replaced") as error:
            train.run(tiny(), run, progress=False)
        assert error.value.code == 5
        assert before == [read(run)]


def read(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_directory_that_is_read_only_is_refused():
    # not even root writes here
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        train.run(tiny(), Path("/proc/self"), progress=False)
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        train.run(tiny(), Path("/proc/run"), progress=False)


OTHERS = {
    "width": ({"width": 16}, "model.width: 8 there, 16 here"),
    "depth": ({"layers": 2}, "model.layers: 1 there, 2 here"),
    "dtype": ({"dtype": "bfloat16"}, "model.dtype: 'float32' there, 'bfloat16' here"),
    "mechanism": (
        {"attention": {"name": "linear"}},
        "model.attention.name: 'softmax' there, 'linear' here",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_another_model_is_refused_by_the_paths_that_differ(kind: str, whole: Path, tmp_path: Path):
    model, line = OTHERS[kind]
    other = tiny(model=model)
    with pytest.raises(RunDirectoryError) as error:
        train.run(other, whole, progress=False)
    assert f"\n  {line}\n" in str(error.value)
    # and where someone takes the configuration away, by the arrays or the configuration's hash
    workdir = shutil.copytree(whole, tmp_path / "run")
    (workdir / "result.json").unlink()
    disk.write_json(workdir / "config.json", to_dict(other))
    with pytest.raises(CheckpointError, match=r"other arrays|other config") as error:
        train.run(other, workdir, progress=False)
    assert error.value.code == 4
    if kind in ("width", "depth"):
        assert "params." in str(error.value)
        assert "float32[" in str(error.value)


def test_metrics_cut_anywhere_are_whole_lines_of_increasing_steps(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in (1, 2, 3, 2, 3, 4)]
    content = "".join(lines).encode()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut] + b"\xff\x00{" * (cut % 2))
        repair_metrics(path, 3)
        steps = [row["step"] for row in map(json.loads, path.read_text().splitlines())]
        assert steps == list(range(1, len(steps) + 1)), cut
        assert len(steps) >= min(3, content[:cut].count(b"\n")), cut
        assert [row["step"] for row in read_metrics(path)] == steps


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(number, tmp_path, monkeypatch):
    """The system's words alone were told, without a path."""

    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    told = f"^{tmp_path} cannot be locked: .*{os.strerror(number)}; give a --workdir on another"
    with pytest.raises(RunDirectoryError, match=told), held(tmp_path):
        pass
