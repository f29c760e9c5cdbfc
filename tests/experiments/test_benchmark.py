"""A benchmark times nothing that is wrong, and its oracles are the mechanisms' own definitions."""

import functools
import json

import jax
import numpy as np
import pytest

from attn import MECHANISMS, Causal, Softmax, Window
from experiments import benchmark
from experiments.measure import cost, peers
from experiments.report import benchmark as report_benchmark

SHAPE = cost.Shape(B=2, T=70, N=2, K=2, H=16)
INPUTS = SHAPE.qkvg(0)
CAUSAL = functools.partial(peers.softmax_oracle, Causal())


def run(function):
    return jax.jit(cost.forward_backward(function))(*INPUTS)


@pytest.mark.parametrize("mask", [Causal(), Window(7, 0), Window(3, 5)])
def test_the_softmax_oracle_is_the_definition(mask):
    q, k, v = (np.asarray(x[-1, :, -1], np.float64) for x in INPUTS[:3])
    want = Softmax().reference(*INPUTS[:3], mask=mask)[-1, :, -1]
    np.testing.assert_allclose(peers.softmax_oracle(mask, q, k, v), want, atol=2e-6)


def test_the_linear_oracle_is_the_definition():
    q, k, v = (np.asarray(x[-1, :, -1], np.float64) for x in INPUTS[:3])
    want = MECHANISMS["linear"]().reference(*INPUTS[:3], mask=Causal())[-1, :, -1]
    np.testing.assert_allclose(peers.linear_oracle(Causal(), q, k, v), want, atol=2e-6)


@pytest.mark.parametrize("name", ["jax.nn", "flax.linen", "flax.nnx"])
@pytest.mark.parametrize("mask", [Causal(), Window(7, 0)])
def test_peers_agree_with_the_oracle(name, mask):
    results = run(peers.PEERS[name](mask, SHAPE.T))
    assert (
        peers.disagreement(functools.partial(peers.softmax_oracle, mask), INPUTS, results) is None
    )


def test_the_token_scan_agrees_with_the_oracle():
    oracle = functools.partial(peers.linear_oracle, Causal())
    assert peers.disagreement(oracle, INPUTS, run(peers.token_scan(Causal(), SHAPE.T))) is None


def test_planted_mistakes_are_caught():
    out, *gradients = run(lambda q, k, v: Softmax()(q, k, v, mask=Causal()))
    assert peers.disagreement(CAUSAL, INPUTS, (out, *gradients)) is None
    assert "output" in peers.disagreement(CAUSAL, INPUTS, (out * 1.0001,))
    full = run(Softmax())
    assert "output" in peers.disagreement(CAUSAL, INPUTS, full)
    assert "output" in peers.disagreement(CAUSAL, INPUTS, (out * np.nan,))
    for place, name in enumerate("qkv"):
        wrong = [*gradients]
        wrong[place] = wrong[place].at[:, 40].set(0)  # one row of seventy
        assert f"gradient of {name}" in peers.disagreement(CAUSAL, INPUTS, (out, *wrong))


def suite(**changes):
    import dataclasses

    return dataclasses.replace(benchmark.suites()["softmax"], batch=1, **changes)


def test_what_is_wrong_is_not_timed_and_shown_in_red(tmp_path):
    broken = suite(oracle=lambda mask, q, k, v: 2 * peers.softmax_oracle(mask, q, k, v))
    rows = list(benchmark.measure(broken, 32, "forward", ["jax.nn"], rounds=3))
    assert all(row["why"].startswith("wrong, so not timed: output") for row in rows)
    assert not any("minimum" in row for row in rows)
    caption = report_benchmark.terminal("t", rows).caption
    assert {str(span.style) for span in caption.spans} == {"red"}
    environment = {"command": "c"}
    found = {"softmax": {"title": "causal softmax", "rows": rows}}
    report_benchmark.write(found, environment, tmp_path)
    assert '<tr class="bad">' in (tmp_path / "benchmark.html").read_text()


def test_who_cannot_take_part_says_why():
    short = suite(against={"flax.linen": 16})
    ours, linen = benchmark.measure(short, 32, "forward", ["flax.linen"], rounds=3)
    assert ours["why"] == ""
    assert linen["why"] == "skipped: not beyond T = 16, for its memory"


def test_torch_takes_part_or_says_that_it_is_not_installed():
    (_, row) = benchmark.measure(suite(), 32, "forward + backward", ["torch"], rounds=3)
    assert row["why"] in ("", "skipped: torch is not installed")


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    arguments = [f"--workdir={tmp_path}", "--suite=softmax", "--lengths=16,32", "--rounds=3"]
    assert benchmark.main([*arguments, "--against=jax.nn"]) == 0
    assert "attn / it" in capsys.readouterr().out
    found = json.loads((tmp_path / "benchmark.json").read_text())
    rows = found["suites"]["softmax"]["rows"]
    assert [(r["T"], r["mode"]) for r in rows[::2]] == [
        (T, mode) for T in (16, 32) for mode in benchmark.MODES
    ]
    assert all(r["minimum"] <= r["median"] and r["peak_bytes"] > 0 for r in rows)
    assert rows[0]["flops"] == 2 * 2 * 16 * 16 * 4 * 64 * 2
    text = (tmp_path / "benchmark.html").read_text()
    assert text.count("<svg") == 4
    assert "http:" not in text
    markdown = (tmp_path / "benchmark.md").read_text()
    assert "### T = 32, forward + backward" in markdown
    assert found["environment"]["git"] in markdown


def test_mistakes_are_one_message_each(capsys):
    bad = ["--workdir=/tmp/x", "--suite=sofmax", "--lengths=0,a", "--against=jax"]
    assert benchmark.main(bad) == 2
    assert benchmark.main([]) == 2
    errors = capsys.readouterr().err
    assert "4 mistakes" in errors
    assert "did you mean 'softmax'?" in errors
    assert "did you mean 'jax.nn'?" in errors
    assert "--workdir: is required" in errors


def test_exponents_are_fitted():
    lengths = [512, 1024, 2048]
    assert report_benchmark.exponent(lengths, [3 * t**2 for t in lengths]) == pytest.approx(2)
    assert report_benchmark.exponent([512], [1.0]) is None
