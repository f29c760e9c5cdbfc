"""The study of Long Range Arena cut down: its ranks, its sizes made equal, its tables."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.alike import NEAR
from experiments.config import task
from experiments.errors import LabError
from experiments.quantities import params
from experiments.studies.lra import ranks, runs, tables, trees
from experiments.studies.lra.__main__ import FOLDER
from experiments.studies.lra.published import ACCURACY
from experiments.tasks.pathfinder import Pathfinder, PathfinderPatches


def test_orders_alike_reversed_and_with_two_neighbours_swapped():
    theirs = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    of = lambda *values: ranks.agreement(dict(zip("abcde", values)), theirs)
    alike = of(0.1, 0.2, 0.3, 0.9, 0.5)
    assert (alike["models"], alike["rho"], alike["tau"]) == (4, 1, 1)
    assert of(4, 3, 2, 1)["rho"] == -1
    swapped = of(1, 3, 2, 4)
    assert swapped["rho"] == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert swapped["tau"] == pytest.approx(1 - 2 * 1 / 6)
    assert of(1, 1, 1, 1) == {"models": 4}


def test_one_published_average_is_not_the_mean_of_its_row_and_the_study_says_what_that_changes():
    """Sinkhorn's: ranks with the average stood on it without a word."""
    *rows, printed = ACCURACY.values()
    means = {name: np.mean([row[name] for row in rows]) for name in printed}
    other = {n: mean for n, mean in means.items() if abs(mean - printed[n]) > 0.01}
    assert other.keys() == {"sinkhorn"}
    text = " ".join((FOLDER / "README.md").read_text().split())
    assert f"Sinkhorn's, {printed['sinkhorn']}," in text
    assert f"the mean of its five accuracies, {other['sinkhorn']:.2f}," in text
    found = json.loads((FOLDER / "results.json").read_text())["tasks"]
    ps = []
    for ran in (found["listops"]["settings"], found["pathfinder"]["settings"]):
        for both in (ran["as published"], ran["as published"] | ran["equal size"]):
            ours = {name: np.mean(row["accuracy"]) for name, row in both.items()}
            ps.append(ranks.agreement(ours, means))
    told = [f"{x['rho']:+.2f} (p {x['rho p']:.3f})" for x in ps[:2]]
    assert all(x in text for x in told), told
    least = min(min(x["rho p"], x["tau p"]) for x in ps)
    assert f"would be {least:.3f}." in text


@pytest.mark.slow
def test_what_is_as_large_as_it_stands_is_one_run_in_both_settings(tmp_path, monkeypatch):
    pixels = dataclasses.replace(
        runs.TASKS["pathfinder"],
        task=task("pathfinder", resolution=16, dashes=6),
        model={"layers": 1, "width": 32, "heads": 2, "head_dim": 8, "mlp_width": 32},
    )
    monkeypatch.setitem(runs.TASKS, "pathfinder", pixels)
    s = runs.Settings(seeds=2, models=("softmax", "linear", "gla", "synthesizer"))
    planned = s.planned("pathfinder")
    equal = runs.equal_size(planned, tmp_path)
    # of images a synthesizer's logits alone are more than the whole model
    assert [(p.variant, p.experiment.seed) for p in equal] == [
        (model, seed) for seed in (0, 1) for model in ("softmax", "linear", "gla")
    ]
    assert [p in planned for p in equal] == 2 * [True, True, False]
    sizes = [params(p.experiment) for p in equal[:3]]
    assert max(sizes) / min(sizes) - 1 <= NEAR


def test_an_interval_and_what_was_not_trained_twice_are_said():
    row = lambda *accuracy: {
        "seeds": range(len(accuracy)),
        "accuracy": accuracy,
        "matched": None,
        "parameters": 1000,
    }
    settings = {
        runs.AS_PUBLISHED: {"softmax": row(0.5, 0.6), "linear": row(0.6)},
        runs.EQUAL_SIZE: {"softmax": row(0.5, 0.6)},
    }
    found = {"settings": settings, "test rows": 100}
    text = tables.accuracy("listops", found).splitlines()
    assert "| softmax | 36.37 | 55.0 ± 64.3 (2 seeds) | 1,000 | the same |" in text[2]
    assert text[3] == "| linear | 16.13 | 60.0 ± 9.6 | 1,000 | – |  |"


def test_a_task_may_be_run_in_one_setting_alone():
    row = {"accuracy": [0.6], "matched": None, "parameters": 1000}
    found = {"settings": {runs.AS_PUBLISHED: {"softmax": row}}, "test rows": 100}
    text = tables.accuracy("pathfinder", found).splitlines()
    assert text[0] == "|  | paper, at its lengths | as published | parameters |"
    assert text[2] == "| softmax | 71.40 | 60.0 ± 9.6 | 1,000 |"


def test_seeds_are_paired_by_their_numbers_where_a_run_failed():
    row = lambda *seeds: {"seeds": list(seeds), "accuracy": [0.4 + 0.2 * s for s in seeds]}
    shifted = {"seeds": [0, 1, 2], "accuracy": [0.41, 0.61, 0.81]}
    told = tables.differences({"softmax": row(1, 2), "linear": shifted}, 2000)
    assert told["linear"].startswith("tie (+1.0, ")
    names = list(ACCURACY["listops"])[:4]
    rows = {name: row(1, 2) for name in names[1:]} | {names[0]: shifted}
    rows[names[0]]["accuracy"] = [0.0, 0.7, 0.9]
    assert ranks.ranked("listops", rows)["between seeds"] == pytest.approx(1)


def test_a_task_without_a_result_of_a_published_model_is_named():
    modern = {"gla": {"seeds": [0], "accuracy": [0.5]}}
    for rows in ({}, modern):
        with pytest.raises(LabError, match=r"^listops: no model of the paper has a result"):
            ranks.ranked("listops", rows)


def test_models_are_held_against_softmax_wherever_a_run_failed():
    """Without softmax's first seed it was the next model that others were against, by its name."""
    row = lambda *seeds: {"seeds": list(seeds), "accuracy": [0.4 + 0.2 * s for s in seeds]}
    rows = {"local": row(0, 1, 2), "linear": row(0, 1, 2), "softmax": row(1, 2)}
    assert [*tables.differences(rows, 2000)] == ["local", "linear"]
    del rows["softmax"]
    assert tables.differences(rows, 2000) == {}


def test_a_model_with_results_at_equal_size_alone_is_in_the_table():
    row = {"accuracy": [0.6], "matched": "+0.1%", "parameters": 1000}
    settings = {runs.AS_PUBLISHED: {"softmax": row}, runs.EQUAL_SIZE: {"linformer": row}}
    text = tables.accuracy("listops", {"settings": settings, "test rows": 100})
    assert "| linformer | 35.70 | – |  | 60.0 ± 9.6 | 1,000 |" in text


def test_pieces_of_ink_are_those_of_the_image_that_was_cut_up():
    sizes = dict(resolution=32, dashes=6, validation=2, test=3)
    which = np.arange(3)
    whole = Pathfinder(**sizes).examples("test", which).tokens.reshape(3, 32, 32)
    cut = PathfinderPatches(patch=4, **sizes).examples("test", which)
    np.testing.assert_allclose(trees.pixels(cut, 4), (whole - 1) / 255, atol=1e-6)


def test_sizes_of_connected_ink():
    image = np.zeros((16, 16))
    image[2, 2:6] = 1.0  # two dashes a pixel apart are one piece when thickened
    image[2, 7:10] = 0.2  # and apart where ink must be strong
    image[10:12, 3] = 1.0
    found = trees.sizes(image).reshape(4, 5)
    np.testing.assert_array_equal(found[3], [3, 4, 3, 2, 0])  # as it is
    np.testing.assert_array_equal(found[0], [2, 8 + 2 * 7 + 2, 2 + 2 * 2 + 2, 0, 0])
    np.testing.assert_array_equal(found[1], [2, 4 + 2 * 4 + 2, 2 + 2 * 2 + 2, 0, 0])
    np.testing.assert_array_equal(trees.sizes(np.zeros((16, 16))), 0)
