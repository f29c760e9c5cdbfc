"""scripts/setup, with Pythons that only say their version."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_another_python_than_that_of_the_environment_is_not_passed_over(tmp_path):
    """`PYTHON=python3.12 scripts/test` tested on the 3.11 that was there, without a word."""
    for name in ("scripts/setup", "setup.cfg", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    pythons = {"3 11": tmp_path / ".venv/bin/python", "3 12": tmp_path / "python3.12"}
    for version, path in pythons.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)
    hashed = "cat setup.cfg pyproject.toml | cksum > .venv/installed-lab"
    subprocess.run(hashed, shell=True, check=True, cwd=tmp_path)

    def setup(python):
        command = ["env", f"PYTHON={python}", "scripts/setup", "lab"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    same, unnamed, other = map(setup, (pythons["3 11"], "", pythons["3 12"]))
    assert (same.returncode, unnamed.returncode, other.returncode) == (0, 0, 1)
    assert f".venv is not of PYTHON={pythons['3 12']}; remove .venv" in other.stderr
