"""Every accuracy, interval and p of a report, computed again from the files of its runs alone, by
other formulas: the parts are tested elsewhere, here that what is printed is of these numbers."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import bisect
from scipy.stats import norm
from scipy.stats import t as student
from test_gathered import HARDWARE, planned

from experiments import evaluate, records
from experiments.cells import begin
from experiments.fairness import Fairness
from experiments.report import __main__ as command

ROWS, SEEDS, SPLITS = 300, range(4), ("validation", "test")
SKILL = {"softmax": 0.7, "linear": 0.71, "window": 0.8, "performer": 0.55, "bigbird": 0.7}
LEFT = ("linear", 3)  # a run that has not ended


@pytest.fixture(scope="module", params=[1, 5], ids=lambda most: f"{most} answers")
def workdir(request, tmp_path_factory):
    """What five variants and four seeds leave, as the evaluation and the loop write it; rows ask
    for one answer each, or for one to five."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    asked = random.integers(1, request.param + 1, ROWS).astype(float)
    hard = random.normal(0, 0.15, ROWS)  # the same rows for all
    runs = [(planned(name, seed), skill) for name, skill in SKILL.items() for seed in SEEDS]
    begin(folder, [p for p, _ in runs], Fairness())
    for n, (p, skill) in enumerate(runs):
        run = folder / "cells" / p.name
        run.mkdir(parents=True)
        result = {"parameters": 1000 + n, "steps_per_second": 10.0 + n}
        for split in SPLITS:
            chance = np.clip(skill + hard + random.normal(0, 0.01), 0, 1)
            right = random.binomial(asked.astype(int), chance).astype(float)
            rows = evaluate.Answers(p.experiment.posed, 1.5, right, asked, np.zeros(ROWS, int))
            result[split] = rows.scores() | {"by_row": rows.by_row()}
        (run / "config.json").write_text(json.dumps(p.config))
        (run / "environment.json").write_text(json.dumps({"hardware": HARDWARE}))
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        if (p.variant, p.experiment.seed) != LEFT:
            (run / "result.json").write_text(json.dumps(records.sealed(result, p.config)))
    assert command.main([f"--workdir={folder}", f"--out={folder / 'out'}"]) == 0
    return folder


def answers(workdir, split):
    """(right answers by row, out of how many), by variant and seed."""
    found = {}
    for path in workdir.glob("cells/*/result.json"):
        config = json.loads((path.parent / "config.json").read_text())
        rows = json.loads(path.read_text())[split]["by_row"]
        right, of = (np.fromstring(rows[x], sep=" ") for x in ("right", "of"))
        key = config["model"]["attention"]["name"]
        found.setdefault(key, {})[config["seed"]] = right, np.broadcast_to(of, right.shape)
    return found


def accuracy(rows) -> float:
    right, of = rows
    return right.sum() / of.sum()


def left_out(rows) -> np.ndarray:
    """The accuracy without each row: a jackknife, where the report linearises."""
    right, of = rows
    return (right.sum() - right) / (of.sum() - of)


def half(p, values, without, answers) -> float:
    """Half an interval that misses with a chance of p."""
    n, R = len(values), without.shape[-1]
    of_seeds = max(np.std(values, ddof=1), 1 / answers) / n**0.5
    of_rows = np.std(without) * (R - 1) ** 0.5
    return math.hypot(student.isf(p / 2, n - 1) * of_seeds, norm.isf(p / 2) * of_rows)


def holm(ps: dict) -> dict:
    """By its definition: the i-th smallest of n is rejected at a level if all before it are."""
    order = sorted(ps, key=ps.get)
    scaled = [(len(ps) - i) * ps[name] for i, name in enumerate(order)]
    return {name: min(1, max(scaled[: i + 1])) for i, name in enumerate(order)}


def recomputed(workdir, split) -> dict[str, tuple[float, float, float | None, float | None]]:
    """(mean, half its interval, difference from softmax, p) of each variant."""
    found, means, ps, differences = answers(workdir, split), {}, {}, {}
    for name, runs in found.items():
        values, without = [accuracy(x) for x in runs.values()], [*map(left_out, runs.values())]
        total = next(iter(runs.values()))[1].sum()
        means[name] = np.mean(values), half(0.05, values, np.mean(without, 0), total)
        if name == "softmax":
            continue
        both = found["softmax"].keys() & runs.keys()
        pairs = [(runs[seed], found["softmax"][seed]) for seed in both]
        apart = [accuracy(a) - accuracy(b) for a, b in pairs]
        without = np.mean([left_out(a) - left_out(b) for a, b in pairs], 0)
        differences[name] = np.mean(apart)
        miss = lambda p: abs(np.mean(apart)) - half(p, apart, without, total)
        ps[name] = bisect(miss, 1e-12, 1, xtol=1e-14)
    corrected = holm(ps)
    return {n: (*means[n], differences.get(n), corrected.get(n)) for n in found}


def test_a_table_is_what_its_runs_say(workdir):
    lines = (workdir / "out/table.md").read_text().splitlines()
    heading, _, *rows = ([x.strip() for x in line.strip("|").split("|")] for line in lines[:7])
    table = {row[0]: dict(zip(heading, row)) for row in rows}
    validation, expected = (recomputed(workdir, split) for split in SPLITS)
    assert table.keys() == expected.keys() == SKILL.keys()
    page = (workdir / "out/report.html").read_text()
    ties = set()
    for name, (mean, far, difference, p) in expected.items():
        told = table[name]
        for split, found in (("test", (mean, far)), ("validation", validation[name][:2])):
            shown = [float(x) / 100 for x in told[f"{split} (% ± 95%)"].split(" ± ")]
            assert shown == pytest.approx(found, abs=6e-4), name
        assert told["seeds"] == ("3 of 4" if name == LEFT[0] else "4")
        against = told["against the first (points)"]
        for text in (told["test (% ± 95%)"], against):
            assert f">{text.replace('<', '&lt;')}</td>" in page
        if p is None:
            assert against == "—"
            continue
        ties |= {name} if against.startswith("tie (") else set()
        points, shown, *more = against.removeprefix("tie (").removesuffix(")").split(", ")
        assert float(points) == pytest.approx(100 * difference, abs=0.06)
        assert (p < 0.001) if shown == "p < 0.001" else float(shown[2:]) == pytest.approx(p, 0.06)
        assert more == (["over 3 seeds"] if name == LEFT[0] else [])
    assert ties == {name for name, (*_, p) in expected.items() if p is not None and p >= 0.05}
    assert 0 < len(ties) < 4  # of both kinds


def test_the_numbers_of_a_file_are_those_of_its_runs(workdir):
    lines = [x.split(",") for x in (workdir / "out/results.csv").read_text().splitlines()]
    table = [dict(zip(lines[0], x)) for x in lines[1:]]
    for split in SPLITS:
        found = {(x["variant"], int(x["seed"])): x[f"{split}.accuracy"] for x in table}
        runs = answers(workdir, split).items()
        expected = {(n, seed): accuracy(x) for n, own in runs for seed, x in own.items()}
        assert found.pop(LEFT) == ""
        assert {key: float(x) for key, x in found.items()} == pytest.approx(expected)
    # without them neither the table's loss nor its intervals follow from the file
    of = {variant: np.sum(own[0][1]) for variant, own in answers(workdir, "test").items()}
    ended = [x for x in table if x["status"] == "finished"]
    assert all(float(x["test.answers"]) == of[x["variant"]] for x in ended)
    assert {x["test.loss"] for x in ended} == {"1.5"}
