"""A run may start from another's parameters: those that fit, and none in silence."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from tiny_experiment import TINY

from experiments import train
from experiments.checkpoint import flatten
from experiments.errors import ConfigError, RunDirectoryError
from experiments.evaluate import load
from experiments.learner import Learner
from experiments.start import start
from experiments.validation import from_dict


def digits(**model):
    return from_dict(
        {
            **TINY,
            "task": {"name": "digits"},
            "model": {**TINY["model"], "causal": False, **model},
        }
    )


def from_run(experiment, folder):
    return dataclasses.replace(experiment, init_from=str(folder))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run that learned to fill in hidden pixels."""
    folder = tmp_path_factory.mktemp("pretrained")
    result = train.run(dataclasses.replace(digits(), objective="masked"), folder, progress=False)
    assert result["validation"].keys() >= {"loss", "bits_per_token", "accuracy"}
    return folder


@pytest.mark.slow
def test_what_fits_is_taken_and_the_head_is_drawn(pretrained):
    said = []
    state = start(Learner(from_run(digits(), pretrained)), tell=said.append)
    _, params, _ = load(pretrained)
    given, fresh = flatten(params), flatten(Learner(digits()).init().params)
    for name, x in flatten(state.params).items():
        want = fresh if name.startswith("head.") else given
        np.testing.assert_array_equal(x, want[name], err_msg=name)
    assert str(pretrained) in said[0]
    assert any("head.linears" in line and "drawn afresh" in line for line in said)


@pytest.mark.slow
def test_the_run_itself_starts_there(pretrained, tmp_path):
    experiment = from_run(digits(), pretrained)
    train.run(experiment, tmp_path, progress=False)
    there = json.loads((tmp_path / "config.json").read_text())
    assert there["init_from"] == str(pretrained)


@pytest.mark.slow
def test_another_model_is_refused_by_name(pretrained):
    wider = digits(mlp_width=5)
    with pytest.raises(ConfigError, match="mlp"):
        start(Learner(from_run(wider, pretrained)))


@pytest.mark.slow
def test_other_heads_of_the_same_size_are_refused(pretrained):
    with pytest.raises(ConfigError, match=r"model\.heads: 2 there, 4 here"):
        start(Learner(from_run(digits(heads=4), pretrained)))


@pytest.mark.slow
def test_cls_takes_a_position_of_its_own(pretrained, tmp_path):
    learned = dict(positions="learned")
    masked = dataclasses.replace(digits(**learned), objective="masked")
    train.run(masked, tmp_path, progress=False)
    own = Learner(from_run(digits(pooling="cls", **learned), tmp_path))
    place = lambda params: flatten(params)["embedding.positions.value"]
    got, given = place(start(own).params), place(load(tmp_path)[1])
    np.testing.assert_array_equal(got[1:], given)
    np.testing.assert_array_equal(got[0], place(own.init().params)[0])


@pytest.mark.slow
def test_other_settings_are_told(pretrained):
    said = []
    start(Learner(from_run(digits(activation="relu"), pretrained)), tell=said.append)
    assert any("model.activation: 'gelu' there, 'relu' here" in line for line in said)


@pytest.mark.slow
def test_a_run_that_has_not_ended_is_told(pretrained, tmp_path):
    said = []
    unfinished = shutil.copytree(pretrained, tmp_path / "run")
    (unfinished / "result.json").unlink()
    for folder in (pretrained, unfinished):
        start(Learner(from_run(digits(), folder)), tell=said.append)
    whole, part = (line for line in said if line.startswith("starting from"))
    assert whole.endswith(str(pretrained))
    assert part.endswith(f"{unfinished}, which has not come to its end")


def test_no_run_is_named_before_anything_is_compiled(tmp_path):
    learner = Learner(from_run(digits(), tmp_path))
    learner.start = lambda: pytest.fail("compiled")
    with pytest.raises(RunDirectoryError, match=str(tmp_path)):
        start(learner)
    learner = Learner(from_run(digits(), tmp_path / "x"))
    with pytest.raises(ConfigError, match=r"  init_from=\S+/x: expected the folder of a run"):
        start(learner)


def test_without_a_source_it_is_drawn():
    learner = Learner(digits())
    drawn, begun = learner.init().params, start(learner).params
    jax.tree.map(np.testing.assert_array_equal, drawn, begun)
