"""The commit that is recorded is of the code that runs."""

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tiny_experiment import TINY, tiny

from attn import Softmax
from experiments import compare, config, gathered, provenance, train
from experiments.provenance import commit_of
from experiments.records import read_environment, write_environment
from experiments.report import costs
from experiments.report.comparison import _several
from experiments.report.data import Cell
from experiments.sources import _hash, data_of, sources
from experiments.sweep import Planned
from experiments.validation import from_dict


@pytest.fixture
def checkout(tmp_path: Path):
    """(git in a repository of one file, `a`; its folder)."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    tell = lambda *arguments: subprocess.check_output([*git, *arguments], text=True).strip()
    tell("init")
    (tmp_path / "a").write_text("a")
    tell("add", "a")
    tell("commit", "-m", "a")
    return tell, tmp_path


def test_the_commit_is_told_without_writing_to_the_checkout(checkout):
    """git describe writes the index; killed there, it left a lock that stopped the next commit."""
    tell, folder = checkout
    path, index = folder / "a", folder / ".git" / "index"
    before = index.read_bytes()
    os.utime(path, (0, 0))  # as git does not know the file; what is in it is the same
    assert commit_of(folder) == tell("rev-parse", "HEAD")
    # other changes are other code: costs that were measured before them were taken for theirs
    found = [path.write_text(text) and commit_of(folder) for text in "bcb"]
    assert found[0] == found[2] != found[1]
    for name in found:
        assert re.fullmatch(tell("rev-parse", "HEAD") + "-dirty-[0-9a-f]{8}", name)
    assert index.read_bytes() == before


def test_outside_of_git_there_is_no_commit(tmp_path: Path):
    assert commit_of(tmp_path) == ""


def test_the_commit_of_a_project_that_it_is_installed_in_is_not_its_own(checkout):
    """It was recorded for what pip installed in a project's .venv, whatever version that was."""
    tell, folder = checkout
    (installed := folder / ".venv/site-packages").mkdir(parents=True)
    (folder / ".venv/.gitignore").write_text("*")  # as venv and uv write it
    assert commit_of(installed) == ""
    assert commit_of(folder) == tell("rev-parse", "HEAD")


def test_code_that_git_does_not_know_yet_is_told_from_the_commit(checkout):
    """A new mechanism's file: runs before and after a change in it were of one commit, and the
    costs of the first were taken for those of the second."""
    tell, folder = checkout
    commit, path = tell("rev-parse", "HEAD"), folder / "attn" / "dense" / "mine.py"
    path.parent.mkdir(parents=True)
    (folder / "notes.py").write_text("")
    (path.parent / "gone.py").symlink_to("nothing")
    found = [path.write_text(text) and commit_of(folder) for text in "bcb"]
    assert found[0] == found[2] != found[1]
    assert all(x.startswith(f"{commit}-dirty-") for x in found)
    (path.parent / "gone.py").unlink()
    path.unlink()
    assert commit_of(folder) == commit  # whatever is beside the code


def test_what_is_edited_during_a_comparison_is_not_its_code(checkout, monkeypatch):
    """Its later runs were told to be of another version, and costs were kept as of that."""
    tell, folder = checkout
    monkeypatch.setattr(provenance, "ROOT", folder)
    provenance.git_commit.cache_clear()

    def edited(experiment, workdir, *, command):
        (folder / "a").write_text("b")
        raise MemoryError("no")

    arguments = [Planned("all", tiny())], folder / "out"
    found = compare.compare(*arguments, title="", run=edited, measure=lambda chosen, cache: {})
    provenance.git_commit.cache_clear()
    assert found.environment["git"] == tell("rev-parse", "HEAD") != commit_of(folder)


def test_the_users_own_mechanism_is_told_by_its_file(tmp_path, monkeypatch):
    """It may change between the runs of a comparison, and is in no commit of this repository."""
    file, known = tmp_path / "mine.py", []
    monkeypatch.setitem(sys.modules, "mine", types.SimpleNamespace(__file__=str(file)))
    monkeypatch.setattr(costs, "_before", lambda cache, key: known.append(key) or {})

    def run(name: str, text: str) -> Cell:
        """Of a process that has read the file."""
        file.write_text(text)
        kind = type("Mine", (), {"__module__": "mine"})
        monkeypatch.setitem(config.TOKEN_MIXERS, "mine", kind)
        model = types.SimpleNamespace(attentions=(kind(), Softmax()), cross=Softmax())
        mine = types.SimpleNamespace(task=tiny().task, model=model)
        found = sources([mine])
        file.write_text("edited since")
        assert sources([mine]) == found
        monkeypatch.setattr(costs, "sources", lambda experiments: found)
        costs.costs({}, tmp_path)
        return cell(name, found)

    def cell(name: str, found: dict[str, str]) -> Cell:
        path = tmp_path / f"{name}.json"
        write_environment(path, "", source=found)
        code = gathered.code(read_environment(path))
        return Cell(name, name, 0, {}, {"test": {}}, None, code=code)

    other, cells = cell("softmax", sources([tiny()])), [run("a", "1"), run("b", "1"), run("a", "2")]
    assert _several((*cells[:2], other), {}) == ""
    one, two = (hashlib.sha256(x).hexdigest()[:8] for x in (b"1", b"2"))
    told = f"of the code or the data: source.mine {one} (1 run) and {one}, then {two} (1 run)."
    assert told in _several((*cells[1:], other), {})
    assert known[0] == known[1] != known[2]


def test_what_a_mechanism_imports_from_beside_its_file_is_its_source_too(tmp_path, monkeypatch):
    """Runs before and after an edit of it were told to be of the same code."""
    (tmp_path / "mine.py").write_text("import json\nfrom helper import SCALE, mine")
    module = types.SimpleNamespace(__file__=str(tmp_path / "mine.py"))
    monkeypatch.setitem(sys.modules, "mine", module)

    def edited(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return _hash(type("Mine", (), {"__module__": "mine"}))

    found = [edited("helper.py", "from . import deeper"), edited("deeper.py", "1")]
    found += [edited("deeper.py", "2"), edited("config.py", "")]  # which nobody imports
    assert len({*found}) == 3
    assert found[2] == found[3]


@pytest.mark.slow
def test_runs_on_data_that_changed_between_them_are_told(tmp_path, compiled_once):
    """They were compared as if they had been asked the same, and paired row by row."""
    (tmp_path / "text").write_text("abcde" * 60)
    task = {"name": "bytes", "path": str(tmp_path / "text"), "length": 4}
    short = TINY["train"] | {"steps": 2, "eval_every": 2, "save_every": 2}
    experiment = from_dict(TINY | {"task": task, "train": short})
    result = train.run(experiment, tmp_path / "run", progress=False)
    code = gathered.code(read_environment(tmp_path / "run" / "environment.json"))
    defined, data = "data.Bytes length=4", experiment.task.fingerprint()
    assert code[defined] == data
    cell = lambda **more: Cell("a", "a", 0, {}, result, None, code=code | more)
    other_task = {"data.Bytes length=5": "other"}  # which its variant tells
    assert _several([cell(), cell(**other_task)], {}) == ""
    # one that starts from another run, which may be made again meanwhile
    later = dataclasses.replace(experiment, init_from=str(tmp_path / "run"))
    start = data_of(later, data)[f"init_from {tmp_path / 'run'}"]
    assert len(start) == 16
    assert result["sha256"].startswith(start)
    told = f"the code or the data: {defined} {data} (1 run) and other (1 run)."
    assert told in _several([cell(), cell(**{defined: "other"})], {})
