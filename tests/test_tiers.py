"""When tests run: at once, in CI, with `scripts/test --all`; and that CI ends within its hour."""

import subprocess
import sys

import pytest
from tiers import ENGINES, at_once, in_ci, turn

import attn

TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): ...

def test_quick(): ...
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


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "told"), [("0", "2 passed, 2 skipped"), ("9", "4 passed")])
def test_slow_tests_come_last_laws_before_others_and_none_begins_late(minutes, told, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_laws.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", "-v"]
    here = {"cwd": tmp_path, "capture_output": True, "text": True}
    env = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([*command, f"--minutes={minutes}", "."], **here, env=env)
    order = [line.split()[0] for line in run.stdout.splitlines() if "::" in line and "%]" in line]
    names = [f"test_{x}.py::test_{y}" for y in ("quick", "slow") for x in ("laws", "it")]
    assert order == names, run.stdout + run.stderr
    assert told in run.stdout
    assert ("2 slow tests not begun" in run.stdout) == (minutes == "0")
