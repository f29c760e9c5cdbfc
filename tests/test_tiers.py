"""When tests run: at once, in CI, with `scripts/test --all`; and that CI ends within its hour."""

import subprocess
import sys

import pytest
from tiers import ENGINES, at_once, in_ci

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


@pytest.mark.parametrize(("minutes", "told"), [("0", "1 passed, 1 skipped"), ("9", "2 passed")])
def test_what_is_not_slow_comes_first_and_no_slow_test_begins_late(minutes, told, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", "-v"]
    here = {"cwd": tmp_path, "capture_output": True, "text": True}
    env = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([*command, f"--minutes={minutes}", "test_it.py"], **here, env=env)
    assert run.stdout.index("test_quick") < run.stdout.index("test_slow"), run.stdout + run.stderr
    assert told in run.stdout
    assert ("1 slow tests not begun" in run.stdout) == (minutes == "0")
