"""When tests run: at once, in CI, with `scripts/test --all`; and that CI ends within its hour."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiers import ENGINES, at_once, in_ci, turn

import attn

TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): ...

def test_quick(): ...
"""

PROGRAMS = """
import conftest
import jax

conftest.MANY = 0
f = jax.jit(lambda x: x + 1)

def test_compiled():
    f(1.0)
    assert f._cache_size() == 1

def test_let_go():
    assert f._cache_size() == 0
"""


def test_each_engine_is_of_a_mechanism():
    assert set(ENGINES) <= attn.MECHANISMS.keys()


def test_marks():
    marks = lambda params: [[m.name for m in getattr(x, "marks", ())] for x in params]
    assert marks(at_once(("softmax", "relu"))) == [[], ["slow"]]
    assert marks(in_ci(("relu", "softmax"), ("softmax",))) == [["thorough"], ["slow"]]


def test_slow_files_take_turns():
    files = ("test_a.py", "test_b.py", "test_c.py")
    order = lambda commit: tuple(sorted(files, key=lambda file: turn(file, commit)))
    assert order("abc") == order("abc")
    assert {order(commit)[0] for commit in map(str, range(20))} == set(files)


def run_tests(folder, *options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", "-v"]
    here = {"cwd": folder, "capture_output": True, "text": True}
    return subprocess.run([*command, *options], **here, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are counted on Linux")
def test_programs_are_let_go_before_a_worker_has_too_many_mappings(tmp_path):
    (tmp_path / "test_it.py").write_text(PROGRAMS)
    run = run_tests(tmp_path, ".")
    assert "2 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "told"), [("0", "2 passed, 2 skipped"), ("9", "4 passed")])
def test_slow_tests_come_last_laws_before_others_and_none_begins_late(minutes, told, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_laws.py").write_text(TESTS)
    run = run_tests(tmp_path, f"--minutes={minutes}", ".")
    order = [line.split()[0] for line in run.stdout.splitlines() if "::" in line and "%]" in line]
    names = [f"test_{x}.py::test_{y}" for y in ("quick", "slow") for x in ("laws", "it")]
    assert order == names, run.stdout + run.stderr
    assert told in run.stdout
    assert ("2 slow tests not begun" in run.stdout) == (minutes == "0")
