"""Copies of the metrics arrive as they were written, and none of them can harm a run."""

import json
import struct
import sys
import types
from pathlib import Path

import pytest
from full_disk import full_disk
from tiny_experiment import rows, state_digest, tiny, write_config

from experiments import compare, sinks, train
from experiments.sinks import SINKS, Sinks

ROWS = [
    {"step": 3, "loss": 2.5, "seconds": 1.0},
    {"step": 4, "skipped": "loss", "seconds": 1.5},
    {"step": 5, "loss": 2.0, "validation": {"accuracy": 0.5, "slices": {"1 pair": 0.25}}},
]


def events(folder: Path) -> dict[tuple[str, int], float]:
    """The numbers of TensorBoard's files, by name and step."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.glob("events.out.tfevents.*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)  # then its checksum
            event = Event.FromString(content[at + 12 : at + 12 + size])
            found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
            at += 16 + size
    return found


def test_tensorboard_reads_what_was_measured(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # which it would import to no purpose
    pytest.importorskip("tensorboardX", reason="the extra [log]")
    with Sinks(["tensorboard"], tmp_path, warn=pytest.fail) as found:
        found.write(ROWS[:2])
        found.write(ROWS[2:])
    assert events(tmp_path / "tensorboard") == {
        ("loss", 3): 2.5,
        ("seconds", 3): 1.0,
        ("seconds", 4): 1.5,
        ("loss", 5): 2.0,
        ("validation/accuracy", 5): 0.5,
        ("validation/slices/1_pair", 5): 0.25,
    }


def test_tensorboard_has_what_a_run_that_is_killed_had_measured(tmp_path: Path, monkeypatch):
    """The score of a checkpoint was lost: the session after the kill goes on with the next step."""
    monkeypatch.setitem(sys.modules, "torch", None)
    pytest.importorskip("tensorboardX", reason="the extra [log]")
    with Sinks(["tensorboard"], tmp_path, warn=pytest.fail) as found:
        found.write(ROWS)
        assert ("validation/accuracy", 5) in events(tmp_path / "tensorboard")


def test_tensorboard_on_a_full_disk_stops_no_run(tmp_path: Path, monkeypatch):
    """Its writer's thread ended, and the run waited for it without end, also when it was told to
    stop."""
    monkeypatch.setitem(sys.modules, "torch", None)
    pytest.importorskip("tensorboardX", reason="the extra [log]")
    warned: list[str] = []
    with Sinks(["tensorboard"], tmp_path, warn=warned.append) as found:
        found.write(ROWS[:1])
        before = events(tmp_path / "tensorboard")
        (file,) = (tmp_path / "tensorboard").iterdir()
        with full_disk(file.stat().st_size):
            for row in 10 * ROWS:
                found.write([row])
    (line,) = warned
    assert line.startswith("--sink=tensorboard failed, and the run goes on without it: OSError")
    assert events(tmp_path / "tensorboard") == before


def test_wandb_gets_what_was_measured_offline(tmp_path: Path, monkeypatch):
    logged, opened = [], {}

    def init(**options: object) -> types.SimpleNamespace:
        opened.update(options)
        log = lambda numbers, step: logged.append((step, numbers))
        return types.SimpleNamespace(log=log, finish=lambda: logged.append("finished"))

    module = types.SimpleNamespace(init=init, Settings=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "wandb", module)
    (tmp_path / "config.json").write_text('{"seed": 3}')
    with Sinks(["wandb"], tmp_path, warn=pytest.fail) as found:
        found.write(ROWS[:1])
        found.write(ROWS[2:])
    last = {"loss": 2.0, "validation/accuracy": 0.5, "validation/slices/1 pair": 0.25}
    assert logged == [(3, {"loss": 2.5, "seconds": 1.0}), (5, last), "finished"]
    assert opened["mode"] == "offline"
    assert opened["config"] == {"seed": 3}
    assert opened["settings"]["x_disable_meta"]  # the command line


class Broken:
    """A sink that fails when it is opened, written to or closed."""

    at, error = "open", ConnectionError

    def __init__(self, workdir: Path, first: int) -> None:
        self.fail_at("open")

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.fail_at("write")

    def close(self) -> None:
        self.fail_at("close")

    def fail_at(self, moment: str) -> None:
        if moment == self.at:
            raise self.error(f"no {moment}")


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
@pytest.mark.parametrize("moment", ["open", "write", "close"])
def test_a_sink_that_fails_is_left_out_with_one_warning(
    moment: str, error: type[BaseException], tmp_path: Path, monkeypatch
):
    seen, warned = [], []

    class Good(Broken):
        at = None

        def write(self, step: int, numbers: dict[str, float]) -> None:
            seen.append(step)

    monkeypatch.setattr(Broken, "at", moment)
    monkeypatch.setattr(Broken, "error", error)
    monkeypatch.setattr(sinks, "SINKS", {"broken": Broken, "good": Good})
    with Sinks(["broken", "good"], tmp_path, warn=warned.append) as found:
        for row in ROWS:
            found.write([row])
    assert seen == [3, 4, 5]
    (line,) = warned
    told = f"--sink=broken failed, and the run goes on without it: {error.__name__}: no {moment}"
    assert line == told


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_what_is_not_installed_is_named_with_its_extra(name, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "config.json").write_text("{}")
    warned: list[str] = []
    with Sinks([name], tmp_path, warn=warned.append) as found:
        found.write(ROWS)
        found.write(ROWS)
    (line,) = warned
    assert "pip install 'attn-lab[log]'" in line


@pytest.mark.parametrize("command", [train, compare])
def test_what_is_not_installed_is_told_before_anything_is_run(
    command, tmp_path, monkeypatch, capsys
):
    """It was after the first step, of each run of a comparison, and never of a dry run."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = write_config(tmp_path / "c.py", "sweep = lambda: [{'seed': 0}]\n")
    given = [f"--config={config}", f"--workdir={tmp_path / 'run'}", "--sink=wandb"]
    assert command.main(given) == 2
    told = capsys.readouterr().err
    assert "--sink" in told
    assert "needs wandb, which is not installed: pip install 'attn-lab[log]'" in told
    assert not (tmp_path / "run").exists()


def test_nothing_else_imports_them():
    root = Path(sinks.__file__).parent
    for module in ("tensorboardX", "wandb"):
        found = [p.name for p in root.rglob("*.py") if f"import {module}" in p.read_text()]
        found += [p.name for p in root.rglob("*.py") if f"from {module}" in p.read_text()]
        assert set(found) == {"sinks.py"}


@pytest.mark.slow
@pytest.mark.optimised
def test_a_run_with_sinks_is_the_run_without(whole: Path, tmp_path: Path, monkeypatch, capsys):
    written = []

    class Kept(Broken):
        at = "close"

        def write(self, step: int, numbers: dict[str, float]) -> None:
            written.append((step, numbers["loss"]))

    monkeypatch.setitem(SINKS, "tensorboard", Kept)
    monkeypatch.setitem(SINKS, "wandb", Broken)
    train.run(tiny(), tmp_path, progress=False, sinks=["tensorboard", "wandb"])
    assert rows(tmp_path) == rows(whole)
    assert state_digest(tmp_path) == state_digest(whole)
    assert written == [(row["step"], row["loss"]) for row in rows(whole)]
    assert capsys.readouterr().err.count("--sink=") == 2
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == len(written)
