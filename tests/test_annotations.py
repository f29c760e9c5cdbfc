"""The shapes in the annotations are those that run: the oracle tests under jaxtyping's checker."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.slow
def test_annotated_shapes_hold_while_the_oracle_tests_run():
    hook = "--jaxtyping-packages=attn,beartype.beartype"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", hook]
    run = subprocess.run(
        [*command, str(HERE / "test_oracle.py")],
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # it is for the shapes
    )
    assert run.returncode == 0, run.stdout[-3000:]
