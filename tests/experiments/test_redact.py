"""What is named a secret is in no file and no stream; what only sounds like one stays."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_experiment import tiny, write_config

from experiments import cells, compare, seen, sinks, train
from experiments.config import TOKEN_MIXERS, Experiment, Model, Optimizer, Train
from experiments.errors import ConfigError, LabError
from experiments.fairness import Fairness
from experiments.mistakes import shorten
from experiments.redact import HIDDEN, command, redacted
from experiments.stdout import Console
from experiments.sweep import Planned
from experiments.tasks import TASKS

SECRETS = [
    "WANDB_API_KEY=hunter2",
    "--token=hunter2",
    "--token hunter2",
    "--config.x.api_key 'hunter2' --seed=1",
    "slurm_setup=export HF_TOKEN='hunter2'",
    "db-password=hunter2, x=3",
    '{"secret": "hunter2"}',
    "{'apiKey': 'hunter2'}",
    "Passwd=hunter2",
    "https://user:hunter2@host/data",
    "https://hunter2@host/data",
    "https://host/data?x=1&token=hunter2&y=2",
    "accessToken=hunter2",
    '{"clientSecret": "hunter2"}',
    "--hfToken hunter2",
    "key = 'hunter2'",
    "PASSWORD =hunter2",
    "password=a,hunter2;c&hunter2",
    "password=(a hunter2) x",
    "token=[a, hunter2]",
    "secret={'a': hunter2}",
    "{'password': ['a', 'hunter2']}",
    "token='a hunter2...",
    '{"token": "a\\" hunter2...',
    "{'token': b'a hunter2'}",
    "https://user:a/hunter2@host/data",
    "https://user:a@hunter2@host/data",
]
HARMLESS = [
    "--config.model.kv_heads=2",
    "tokens=1e6",
    "topk keys=16",
    "token_width=3",
    "--tokens 3",
    "expected a token after it",
    "monkey=3",
    "unknown token: 'x'",
    "listops.tsv:3: expected a token, got 'x'",
    "{'keys': 4, 'name': 'topk'}",
    "https://host/data?x=1",
    "https://host/data@v1",
    "token == x",
    "monKey business=3",
    "a@b",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_hidden(text: str):
    assert "hunter2" not in redacted(text)
    assert HIDDEN in redacted(text)
    assert "hunter2" not in str(LabError(f"there: {text}"))
    assert "hunter2" not in str(ConfigError(["a: b", f"c: {text}"], "d"))


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_sounds_like_one_stays(text: str):
    assert redacted(text) == text


def test_no_field_of_a_configuration_is_a_secret():
    records = [Experiment, Model, Optimizer, Train, Fairness, *TASKS.values()]
    records += TOKEN_MIXERS.values()
    for name in {field.name for record in records for field in dataclasses.fields(record)}:
        assert redacted(f"--config.a.{name}=5") == f"--config.a.{name}=5"


def test_a_command_is_kept_but_for_its_secrets():
    given = ["--config=c.py:a b", "--slurm=slurm_setup=WANDB_API_KEY=hunter2", "--a.password=b c"]
    kept = (
        f"python -m experiments.x '--config=c.py:a b' '--slurm=slurm_setup=WANDB_API_KEY={HIDDEN}'"
    )
    assert command("experiments.x", given) == f"{kept} '--a.password={HIDDEN}'"
    two = command("experiments.x", ["--token", "b c", "--seed", "1"])
    assert two == f"python -m experiments.x --token '{HIDDEN}' --seed 1"
    assert command("experiments.x", given[:1]) == "python -m experiments.x '--config=c.py:a b'"


def test_what_is_shortened_shows_no_half_of_a_secret():
    for text in ("https://me:hunter2" + 99 * "x" + "@host", f"token='hunter2 {99 * 'x'}'"):
        assert "hunter2" not in shorten(text)


def test_what_failed_beside_a_run_is_told_without_its_secrets(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no access with accessToken=hunter2")

    told: list[str] = []
    monkeypatch.setitem(sinks.SINKS, "tensorboard", fail)
    with sinks.Sinks(["tensorboard"], tmp_path, warn=told.append) as copies:
        copies.write([{"step": 1}])
    monkeypatch.setattr(seen, "trained_or_not", fail)
    told.append(seen.sight(tmp_path).about)
    compare._costs(fail, {}, tmp_path, Console())
    told.append(capsys.readouterr().out)
    assert [HIDDEN in x for x in told] == [True] * 3
    assert "hunter2" not in "".join(told)


def test_a_failed_run_keeps_no_secret(tmp_path: Path):
    def run(experiment, workdir, *, command):
        raise RuntimeError("no access to https://me:hunter2@host with token=hunter2")

    found = cells.Cells(tmp_path, (Planned("softmax", tiny()),))
    told: list[str] = []
    found.work(run, "", told.append)
    assert "failed: RuntimeError: no access to" in told[-1]
    assert "hunter2" not in "".join(told)
    (failure,) = tmp_path.rglob("failure.json")
    assert "hunter2" not in failure.read_text()


def test_mistakes_and_records_of_a_command_show_no_secret(tmp_path: Path, monkeypatch, capsys):
    config = write_config(tmp_path / "c.py", "def sweep():\n    yield {}\n")
    bad = [f"--config={config}", f"--workdir={tmp_path}/a", "--config.task={'password': 'hunter2'}"]
    monkeypatch.setattr("sys.argv", ["compare", "--slurm=slurm_setup=API_TOKEN=hunter2", *bad])
    assert compare.main() == 2
    error = capsys.readouterr().err
    assert "'password': " in error
    assert "hunter2" not in error
    seen = {}
    monkeypatch.setattr(train, "run", lambda *a, command, **_: seen.update(command=command) or {})
    monkeypatch.setattr("sys.argv", ["train", "--config.x.token=hunter2"])
    train._run(SimpleNamespace(workdir="w", progress=False, sink=[]), tiny())
    assert json.dumps(seen) == json.dumps(
        {"command": f"python -m experiments.train '--config.x.token={HIDDEN}'"}
    )


def test_the_command_of_a_file_run_in_place_of_a_module_is_that_file(tmp_path: Path):
    """A report named a command that does not know the mechanisms which the file adds."""
    path = tmp_path / "mine.py"
    path.write_text("from experiments import redact\nprint(redact.started('experiments.compare'))")
    mine = [sys.executable, str(path), "--config=x", "--config.x.token=hunter2"]
    said = subprocess.run(mine, capture_output=True, text=True, check=True).stdout
    assert said == f"python {path} --config=x '--config.x.token={HIDDEN}'\n"
