"""Hundreds of cells: a report of them stays small and whole, and that they are done is seen soon.

How long each took is printed: pytest tests/experiments/test_many_cells.py -m "" -rP
"""

import csv
import json
import time

import many_cells
import pytest

from experiments.cells import Cells, begin
from experiments.fairness import Fairness
from experiments.report import __main__ as command

pytestmark = pytest.mark.slow
LARGEST = 10_000_000  # bytes of a report
SEEDS = 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return many_cells.trained(tmp_path_factory.mktemp("few"))


def test_a_report_of_200_cells_is_small_and_whole(trained, tmp_path):
    config = many_cells.write_config(tmp_path / "many.py", decays=20, seeds=SEEDS)
    runs = many_cells.planned(config)
    workdir, out = many_cells.leave(trained, runs, tmp_path / "many"), tmp_path / "out"
    start = time.monotonic()
    assert command.main([f"--workdir={workdir}", f"--out={out}"]) == 0
    page = (out / "report.html").read_text()
    print(f"{len(runs)} cells: {time.monotonic() - start:.1f} s, {len(page.encode()):,} bytes")
    assert len(page.encode()) < LARGEST
    assert all(page.count(f"<b>{run.name}</b>") == 1 for run in runs)
    names = {run.variant for run in runs}
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert {(row["variant"], int(row["seed"])) for row in rows} == {
        (name, seed) for name in names for seed in range(SEEDS)
    }
    assert len(rows) == len(runs) == len(names) * SEEDS
    assert all(float(row["forward_backward_ms"]) > 0 for row in rows)
    figures = json.loads((out / "results.json").read_text())["figures"]
    assert {"tradeoff", "slices", "loss", "validation-accuracy"} <= set(figures)
    assert sum(name.startswith("attention-") for name in figures) == len(names)
    assert page.count("<svg") >= len(figures)
    assert "Failures" not in page


def test_1000_finished_cells_are_recognised(trained, tmp_path):
    config = many_cells.write_config(tmp_path / "many.py", decays=100, seeds=SEEDS)
    workdir = many_cells.leave(trained, many_cells.planned(config), tmp_path / "many")
    start = time.monotonic()
    runs = many_cells.planned(config)
    begin(workdir, runs, Fairness())
    cells = Cells(workdir, tuple(runs))
    left, elsewhere = cells.unfinished(), cells.held_elsewhere()
    print(f"{len(runs):,} cells: {time.monotonic() - start:.2f} s from the file on")
    assert (len(runs), left, elsewhere) == (1000, [], False)
    edited = cells.folder(runs[500]) / "result.json"
    edited.write_text(edited.read_text().replace('"steps": 300', '"steps": 301'))
    assert cells.unfinished() == [runs[500]]
