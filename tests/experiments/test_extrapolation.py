"""Positions in config files: every kind that configs/extrapolation.py has, and mistakes by name."""

from pathlib import Path

import pytest
from tiny_experiment import tiny

from attn.positions import Rotary
from experiments.config_file import read
from experiments.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "configs/extrapolation.py"
KINDS = ("sinusoidal", "learned", "rotary", "xpos", "alibi", "t5", "none", "ntk", "yarn")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_an_experiment(kind):
    experiment = read(f"{CONFIG}:{kind}")
    scaling = kind if kind in ("ntk", "yarn") else "none"
    assert experiment.model.rotary.scaling == scaling
    assert experiment.model.positions == ("rotary" if scaling != "none" else kind)
    assert experiment.task.lengths[0] < experiment.task.length == max(experiment.task.lengths)


def test_rotary_is_a_section_of_the_model():
    given = {"scaling": "yarn", "factor": 4, "original_length": 6, "fraction": 0.5}
    model = tiny(model={"positions": "rotary", "rotary": given}).model
    assert model.rotary == Rotary(**given)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"positions": "xpos", "causal": False}, "model.causal: expected True with positions='xp"),
        ({"positions": "alibi", "rotary": {"base": 9.0}}, "model.rotary: expected its defaults"),
        ({"positions": "rotary", "rotary": {"fraction": 0.3}}, "model.rotary: rotary turns pairs"),
        ({"positions": "rotary", "rotary": {"scaling": "yarn"}}, "model.rotary.original_length: "),
        ({"positions": "rotary", "rotary": {"bse": 9.0}}, "model.rotary.bse: unknown field; did"),
    ],
)
def test_what_does_not_go_together_is_named(model, message):
    with pytest.raises(ConfigError) as error:
        tiny(model=model)
    assert [line[: len(message)] for line in error.value.problems] == [message]
