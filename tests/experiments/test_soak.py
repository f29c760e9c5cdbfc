"""What scripts/soak finds, and that it finds it."""

import random
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from experiments import records, soak
from experiments.checkpoint import Checkpoints
from experiments.errors import LabError
from experiments.validation import from_dict

ROOT = Path(__file__).parents[2]


def test_a_damaged_checkpoint_would_be_found(tmp_path: Path):
    assert soak._verified(tmp_path) == 0
    checkpoints = Checkpoints(directory=tmp_path / "checkpoints", config={}, data="d", keep=2)
    for step in (1, 2):
        checkpoints.save(step, {"w": jnp.ones(3)}, progress={}, best=None)
    assert soak._verified(tmp_path) == 2
    (checkpoints.directory / "1" / "commit_success.txt").write_text("")
    with pytest.raises(LabError, match=r"checkpoints/1 damaged: commit_success\.txt has 0 bytes"):
        soak._verified(tmp_path)


def test_moments_are_those_of_the_seed():
    draw = lambda seed: [soak._moment(random.Random(seed), 2.0, 3.0) for _ in range(5)]
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_what_is_soaked_drops_and_is_saved_between_evaluations():
    experiment = from_dict(soak.EXPERIMENT)
    assert experiment.model.dropout > 0
    assert experiment.train.steps % experiment.train.save_every
    assert experiment.train.save_every % experiment.train.eval_every


def test_only_times_may_differ():
    result = lambda seconds, loss: records.sealed({"wall_seconds": seconds, "loss": loss}, {})
    assert records.timeless(result(1.0, 2.0)) == records.timeless(result(3.0, 2.0))
    assert records.timeless(result(1.0, 2.0)) != records.timeless(result(1.0, 2.1))


@pytest.mark.thorough
def test_a_few_kills():
    command = [sys.executable, "-m", "experiments.soak", "--kills=3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, runs, ended = map(int, re.findall(r"(\d+) kills .* (\d+) of (\d+) runs", done.stdout)[0])
    assert kills >= 3
    assert runs == ended > 0
