"""The complexity table: what is measured is what closed forms say, and a wrong claim is seen."""

import json
from pathlib import Path

import numpy as np
import pytest

import attn
from attn import MECHANISMS
from attn.nn import MIXERS
from experiments.errors import ConfigError
from experiments.measure.cost import Shape
from experiments.report import palette
from experiments.report.powers import fit, power
from experiments.studies import record
from experiments.studies.complexity import __main__ as command
from experiments.studies.complexity import settings as settings_file
from experiments.studies.complexity import tables
from experiments.studies.complexity.claims import CLAIMS, Claim, growths
from experiments.studies.complexity.growth import departs, untold
from experiments.studies.complexity.measure import measure
from experiments.studies.complexity.reach import dependencies, layers_to_reach, reach
from experiments.studies.complexity.work import steps_by_definition, work

CONFIG = Path(__file__).parents[2] / "configs/complexity.py"
SMALL = """
from experiments.config import mechanism
MIXERS = [mechanism("softmax"), mechanism("window", left=3, right=3), mechanism("lstm")]
def get_config():
    at = lambda *lengths: [{"length": T, "mixers": MIXERS} for T in lengths]
    return {"work": at(256, 512, 1024), "reach": at(7, 19), "heads": 2, "head_dim": 4, "draws": 1}
"""


def shape(T: int) -> Shape:
    return Shape(1, T, 2, 2, 4)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "c.py").write_text(SMALL)
    return tmp_path / "c.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("small") / "c.py"
    path.write_text(SMALL)
    read = settings_file.read(str(path))
    return {
        "settings": settings_file.plain(read),
        "mixers": {name: measure(read, name) for name in read.names},
    }


def test_every_mixer_has_a_claim_and_the_config_has_every_mixer():
    every = [*MECHANISMS, *MIXERS]
    assert sorted(CLAIMS) == sorted(every)
    assert settings_file.read(str(CONFIG)).names == every


@pytest.mark.parametrize(
    ("formula", "grows"),
    [
        ("T^2 d", [256]),
        ("T d^2 / h", [16]),
        ("T^2 d / b + T k b d", [256, 16]),
        ("T^2 d / s + T (k b + w) d", [256, 16]),
        ("T (d^3 / h^2 + w d)", [16]),
        ("T sqrt(T) d", [64]),
        ("sqrt(T) / r", [4]),
        ("T log(T) d", [16 * np.log(16)]),
        ("1", [1]),
    ],
)
def test_formulas_grow_by_their_factors_of_the_length(formula, grows):
    assert growths(formula, 16) == pytest.approx(grows)


def test_a_sum_grows_between_its_terms():
    """`nsa` was held to its first term, and said to depart."""
    lengths, claim = [4, 8, 16, 32], "T^2 d / b + T k b d"
    for p in (1, 1.3, 2):
        values = [T**p for T in lengths]
        assert not departs(claim, lengths, values)
        assert not untold(claim, lengths, values)
    for p in (0.5, 2.5):
        assert departs(claim, lengths, [T**p for T in lengths])


def test_an_exact_power_law_has_no_error():
    lengths = [4, 16, 64]
    p, error = fit(lengths, [3 * T**1.5 for T in lengths])
    assert p == pytest.approx(1.5)
    assert error == pytest.approx(0, abs=1e-6)
    assert fit(lengths, [1, 5, 10]).error > 0.1
    assert not departs("log(T)", lengths, np.log(lengths))
    more = [*lengths, 256, 1024]
    assert departs("1", more, np.log(more))
    assert power(lengths, [3 * T**1.5 for T in lengths]) == "T^1.50 ± 0.00"
    assert power([1, 2], [1, 2]) == "T^1.00"


def test_a_departure_within_the_error_of_the_fit_is_not_told():
    """`axial` was said to depart from T^1.5 by a fit of T^1.02 ± 1.82."""
    lengths, jumps = [4, 8, 16, 32], [4, 32, 32, 16]
    assert fit(lengths, jumps).error > 1
    assert not departs("T", lengths, jumps)
    assert untold("T", lengths, jumps)
    assert departs("T", lengths, [1, 1.1, 1, 1.1])
    assert not untold("T", lengths, [1, 1.1, 1, 1.1])
    assert not untold("T", lengths, lengths)


@pytest.mark.parametrize(("name", "exponent"), [("softmax", 2), ("linear", 1), ("linformer", 1)])
def test_work_grows_as_it_should(name, exponent):
    lengths = [2048, 4096, 8192]
    counted = [work(MECHANISMS[name](), shape(T), False).flops for T in lengths]
    assert fit(lengths, counted).exponent == pytest.approx(exponent, abs=0.01)


def test_a_formula_of_all_pairs_is_not_held_against_past_ones():
    formula = lambda name, causal: work(MECHANISMS[name](), shape(64), causal).formula
    assert formula("softmax", False)
    assert formula("softmax", True) is None
    assert formula("delta_net", True) == formula("delta_net", False)


def test_what_has_no_products_or_a_transform_is_not_counted_as_nothing():
    assert work(MIXERS["depthwise_conv"](), shape(64), False).unknown == ("no matrix product",)
    fourier = work(MIXERS["fnet"](), shape(64), False)
    assert (fourier.flops, fourier.unknown) == (None, ("fft",))


def test_steps_in_a_row_of_definitions():
    T = 7
    steps = lambda mixer: steps_by_definition(mixer, shape(T), False)
    assert steps(MIXERS["lstm"]()) == T
    assert steps(MIXERS["lstm"](bidirectional=True)) == T
    assert steps(MECHANISMS["delta_net"]()) == T
    assert steps(MECHANISMS["gla"]()) == steps(MECHANISMS["softmax"]()) == 0
    # the chunks of the engine are steps of ours and not of the definition
    assert work(MECHANISMS["gla"](chunk=2), shape(T), True).steps == -(-T // 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "causal", "layers"),
    [
        (attn.Softmax(), False, 1),
        (attn.SlidingWindow(left=4, right=4), False, 5),
        (MIXERS["conv"](), True, 9),
        (MIXERS["lstm"](), False, 1),
        # without Causal all pairs are wanted, and this one never looks ahead
        (attn.SlidingWindow(left=4, right=0), False, None),
    ],
)
def test_layers_until_all_is_reached(mixer, causal, layers):
    assert reach(mixer, shape(19), causal, 1)[0] == layers


def test_dependencies_are_the_pattern():
    (seen,) = dependencies(attn.StridedPattern(stride=4), shape(19), False, 1)
    i, j = np.indices((19, 19))
    np.testing.assert_array_equal(seen, (abs(i - j) <= 4) | ((i - j) % 4 == 0))


def test_each_layer_takes_the_next_draw():
    left, right = np.eye(4, k=-1, dtype=bool), np.eye(4, k=1, dtype=bool)
    assert layers_to_reach([left], np.tri(4, dtype=bool)) == 3
    assert layers_to_reach([left], np.ones((4, 4), bool)) is None
    corner = np.zeros((4, 4), bool)
    corner[2, 0] = True
    assert layers_to_reach([left], corner) == 2
    assert layers_to_reach([left, right], corner) == 3


@pytest.mark.slow
def test_right_claims_stand(results):
    assert not any(tables.departures(results, name) for name in results["mixers"])
    assert results["mixers"]["window"]["layers"] == [2, 6]
    assert results["mixers"]["lstm"]["layers"] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "claim", "column"),
    [
        ("softmax", Claim("T d^2 / h", "1", "1"), "work"),
        ("softmax", Claim("T log(T) d", "1", "1"), "work"),
        ("softmax", Claim("T^2 d", "T", "1"), "steps"),
        ("softmax", Claim("T^2 d", "1", "log(T)"), "path"),
        ("window", Claim("T sqrt(T) d", "1", "T / w"), "work"),
        ("window", Claim("T w d", "1", "1"), "path"),
        ("lstm", Claim("T d^2", "1", "T"), "steps"),
        ("lstm", Claim("T d^2", "T", "1"), "path"),
    ],
)
def test_a_wrong_claim_is_seen(results, monkeypatch, name, claim, column):
    monkeypatch.setitem(CLAIMS, name, claim)
    assert tables.departures(results, name) == {column}
    assert tables.OTHERWISE in "".join(tables.cells(results, name))
    assert f"`{name}`" in tables.counted(results)


def test_what_never_reaches_all_departs_from_any_claim(results):
    row = results["mixers"]["softmax"]
    never = results | {"mixers": {"softmax": row | {"layers": [1, None]}}}
    assert tables.departures(never, "softmax") == {"path"}
    assert "never" in tables.complexity(never)


def test_mistakes_are_named(small, capsys):
    text = SMALL.replace('mechanism("window"', 'dict(name="windw"')
    text = text.replace('"draws": 1', '"draws": 0, "head": 2')
    small.write_text(text.replace("at(7, 19)", "at(7)"))
    assert command.main([f"--config={small}", "--ot=x"]) == 2
    errors = capsys.readouterr().err
    for part in ("unknown mechanism 'windw'", "draws", "head: unknown field", "'--out'?"):
        assert part in errors
    small.write_text(SMALL.replace("at(7, 19)", "at(19, 7)"))
    with pytest.raises(ConfigError, match="reach: expected two or more rising lengths"):
        settings_file.read(str(small))


@pytest.mark.slow
def test_the_command_writes_the_table(small, tmp_path, capsys):
    out = tmp_path / "out"
    assert command.main([f"--config={small}", f"--out={out}", "--config.causal=True"]) == 0
    assert "README.md" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["settings"]["causal"] is True
    text = (out / "README.md").read_text()
    assert record.renewed(text, command.blocks(results)) == text
    assert (out / "complexity.png").exists()


def test_the_readme_says_what_was_measured():
    found = json.loads((command.FOLDER / "results.json").read_text())
    text = (command.FOLDER / "README.md").read_text()
    assert record.renewed(text, command.blocks(found)) == text
    assert found["run"]["command"] in text
    assert list(found["mixers"]) == [*MECHANISMS, *MIXERS]
    assert (command.FOLDER / "complexity.png").exists()


def test_what_has_one_value_hides_nothing():
    """The steps of six definitions lay under the filled marks of our loops."""
    svg = (command.FOLDER / "complexity.svg").read_text()
    blue, orange = (x.lower() for x in palette.COLOURS[:2])
    assert f"fill: {blue}" in svg
    assert f"stroke: {orange}" in svg
    assert f"fill: {orange}" not in svg
