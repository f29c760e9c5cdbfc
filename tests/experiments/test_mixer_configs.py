"""Token mixers in config files: read, checked and compared where attention is."""

import json

import pytest
from tiny_experiment import TINY, tiny

from attn import SlidingWindow, Softmax
from attn.nn import LSTM, MIXERS
from experiments.config import mechanism
from experiments.errors import ConfigError
from experiments.quantities import state_bytes
from experiments.report.costs import costs, decoding
from experiments.report.data import Cell, variants
from experiments.report.table import markdown
from experiments.validation import from_dict, to_dict

WINDOW = {"name": "window", "left": 2, "right": 0}


def test_json_and_back_is_equal():
    for name in MIXERS:
        one = tiny(model={"attention": mechanism(name), "causal": False})
        assert to_dict(one)["model"]["attention"] == mechanism(name)
        assert from_dict(json.loads(json.dumps(to_dict(one)))) == one
    hybrid = tiny(model={"attention": [WINDOW, WINDOW, "softmax", "lstm"], "layers": 4})
    own = SlidingWindow(left=2, right=0)
    assert hybrid.model.attention == (own, own, Softmax(), LSTM())
    assert from_dict(to_dict(hybrid)) == hybrid


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({"attention": "lstn"}, "model.attention.name: unknown mechanism 'lstn'; did you mean 'ls"),
        ({"attention": {"name": "conv", "kernl": 3}}, "model.attention.kernl: unknown field; did "),
        ({"attention": {"name": "conv", "kernel": 0}}, "model.attention.kernel: expected an integ"),
        ({"attention": "fnet"}, "model.causal: fnet cannot be causal"),
        ({"attention": "gru", "positions": "alibi"}, "model.positions: GRU has no scores to add a"),
        ({"attention": "gru", "qk_norm": True}, "model.qk_norm: GRU has no heads, got True"),
    ],
)
def test_a_mistake_is_named_once(model, line):
    with pytest.raises(ConfigError) as error:
        from_dict({**TINY, "model": {**TINY["model"], **model}})
    (problem,) = error.value.problems
    assert problem.startswith(line)


def test_a_state_is_that_of_every_layer():
    state = lambda *attention: state_bytes(
        tiny(model={"attention": list(attention), "layers": len(attention), "causal": False})
    )
    c_and_h = 2 * 8 * 4  # of width 8 in float32
    assert state("lstm") == c_and_h
    assert state("lstm", WINDOW) == c_and_h + state(WINDOW)
    assert state("lstm", "fnet") is None


def test_a_model_that_is_not_causal_has_no_decode_state_beside_its_accuracy():
    """Bytes of a cache stood beside what a bidirectional encoder had reached."""
    state = lambda attention, causal: decoding(
        tiny(model={"attention": attention, "causal": causal})
    )
    assert state("softmax", True) > 0
    assert state("softmax", False) is None
    assert state("lstm", False) > 0  # sees the past alone, whatever the mask
    assert state({"name": "lstm", "bidirectional": True}, False) is None


@pytest.mark.slow
def test_what_does_not_apply_to_a_mixer_has_a_dash(tmp_path):
    lstm = tiny(model={"attention": "lstm"})
    hybrid = tiny(model={"attention": [WINDOW, "lstm"], "layers": 2})
    found = costs({"lstm": lstm, "hybrid": hybrid}, tmp_path / "costs.json")
    assert not {"forward_ms", "attention_flops"} & found["lstm"].keys()
    assert found["hybrid"]["forward_ms"] > 0
    result = {"test": {"accuracy": 0.5}}
    cells = [
        Cell(f"{name}-0", name, 0, to_dict(experiment), result, None)
        for name, experiment in (("lstm", lstm), ("hybrid", hybrid))
    ]
    row = markdown(variants(cells, found), {}).splitlines()[2]
    forward, both, peak, work, state = (x.strip() for x in row.split("|")[-6:-1])
    assert {forward, both, peak, work} == {"—"}
    assert state == "0.0640"
