"""The pictures of a comparison show the numbers they are of, and only where there are some."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.report import axis, learning, palette, plots, slices
from experiments.report import tradeoff as tradeoffs
from experiments.report.data import Cell, Variant
from experiments.report.pictures import pictures
from experiments.report.sight import Sight, attending, draw, frame
from experiments.report.tradeoff import Point, state
from experiments.studies.complexity import figures as complexity
from experiments.studies.extrapolation import figures as extrapolation
from experiments.studies.recall_state import figures as recall_state
from experiments.sweep import variants


def variant(name, accuracies, length=64, **config):
    """One cell for each dict of accuracies by slice."""
    cells = tuple(
        Cell(
            f"{name}-{seed}",
            name,
            seed,
            {"task": {"name": "recall", "length": length}, "seed": seed, **config},
            {"test": {"accuracy": 0.5, "slices": found}, "steps_per_second": 2.0},
            None,
        )
        for seed, found in enumerate(accuracies)
    )
    return Variant(name, cells, {"decode_state_bytes": 1024})


def texts(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_slices_are_means_over_seeds():
    rows = [
        variant("softmax", [{"4 pairs": 1.0, "8 pairs": 0.5}, {"4 pairs": 0.5, "8 pairs": 0.3}]),
        variant("linear", [{"4 pairs": 0.25, "8 pairs": 0.125}], model=1),
    ]
    (panel,) = slices.panels(rows)
    assert panel.rows["softmax"] == pytest.approx({"4 pairs": 75, "8 pairs": 40})
    assert panel.rows["linear"] == pytest.approx({"4 pairs": 25, "8 pairs": 12.5})
    found = texts(slices.heat([panel]).svg)
    assert [x for x in found if "." in x] == ["75.0", "40.0", "25.0", "12.5"]
    assert {"4 pairs", "8 pairs", "softmax", "linear"} <= set(found)


def test_a_number_of_a_heat_map_stands_in_its_own_row_and_column():
    panel = slices.Panel(
        "", {"luna": {"near": 91.2, "far": 12.3}, "abc": {"near": 45.6, "far": 78.9}}
    )
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)</text>', slices.heat([panel]).svg)
    at = {text: (float(x), float(y)) for x, y, text in found}
    for name, row in panel.rows.items():
        for part, value in row.items():
            x, y = at[f"{value:.1f}"]
            assert x == pytest.approx(at[part][0], abs=1)
            assert y == pytest.approx(at[name][1], abs=3)  # of an alignment and a size of its own


def test_large_weights_are_kept_as_they_are_beside_a_run(tmp_path):
    """Of 100,000 the next report showed an infinite one, and all others as 0."""
    large, small = np.float32([[1e5, 0], [3, 1]]), np.float32([[1, 0], [0.5, 0.5]])
    Sight((large, small), small, "").save(tmp_path)
    for kept, given in zip(Sight.load(tmp_path).layers, (large, small)):
        np.testing.assert_array_equal(kept, given)
    assert np.load(tmp_path / "seen.npz")["layer1"].dtype == np.float16


def test_two_names_that_differ_in_their_middle_are_told_apart():
    """Both rows were "softmax learning_…1, mlp_width=128"."""
    names = [f"softmax learning_rate={x}, mlp_width=128" for x in (0.001, 0.01)]
    found = texts(slices.heat([slices.Panel("", {n: {"a": 1.0, "b": 2.0} for n in names})]).svg)
    assert [x for x in found if "softmax" in x] == names
    assert slices.briefs([names[0], "linear"]) == ["softmax learning_…1, mlp_width=128", "linear"]


def test_lengths_are_rows_of_a_panel_for_each_variant():
    depth = [{"depth 0-50%": 1.0, "depth 50-100%": 0.5}]
    rows = [
        variant(f"{name} length={length}", depth, length, model={"attention": name})
        for name in ("softmax", "linear")
        for length in (128, 64)
    ]
    found = slices.panels(rows)
    assert [p.title for p in found] == ["softmax", "linear"]
    assert [list(p.rows) for p in found] == [["T = 64", "T = 128"]] * 2


def test_a_mechanism_keeps_its_own_length_in_the_title_of_a_panel():
    """Both were called "luna task.model.attention."."""
    sweep = [(T, {"name": "luna", "length": n}) for n in (16, 32) for T in (64, 128)]
    names = variants([{"task.length": T, "model.attention": x} for T, x in sweep])
    depth = [{"depth 0-50%": 1.0, "depth 50-100%": 0.5}]
    rows = [variant(n, depth, T, model={"attention": x}) for n, (T, x) in zip(names, sweep)]
    titles = ["luna model.attention.length=16", "luna model.attention.length=32"]
    assert [p.title for p in slices.panels(rows)] == titles
    alone = variants([{"task.length": T, "model.attention": sweep[0][1]} for T in (64, 128)])
    assert [re.sub(slices.LENGTH, "", x) for x in alone] == ["luna "] * 2
    assert re.sub(slices.LENGTH, "", "lstm b=1, length=8, max_length=9") == "lstm b=1, max_length=9"


def test_one_slice_is_no_heat_map_and_a_missing_one_is_left_blank():
    assert slices.panels([variant("softmax", [{"all": 1.0}])]) == []
    rows = [
        variant("a", [{"x": 1.0, "y": 1.0}, {"x": 1.0}]),  # an edited result: y is not averaged
        variant("b", [{"x": 0.0, "y": 0.0}], model=1),
    ]
    (panel,) = slices.panels(rows)
    assert panel.rows == {"a": {"x": 100}, "b": {"x": 0, "y": 0}}
    assert sum(x == "100.0" for x in texts(slices.heat([panel]).svg)) == 1


@pytest.mark.parametrize(
    ("seeds", "told"), [(1, "One seed each."), (2, "Mean over seeds, in a band")]
)
def test_one_seed_is_told_to_be_no_mean(seeds, told):
    """It had a band from the lowest to the highest seed."""
    row = variant("softmax", [{"all": 1.0}] * seeds)
    cells = tuple(dataclasses.replace(x, metrics=({"step": 1, "loss": 2.0},)) for x in row.cells)
    captions = {x.name: text for x, text in pictures([dataclasses.replace(row, cells=cells)], {})}
    assert captions["loss"].startswith(f"Training loss. {told}")


def test_a_curve_of_runs_that_failed_is_told_from_one_that_is_whole():
    metrics = ({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
    rows = [variant(name, [{"all": 1.0}]) for name in ("softmax", "linear")]
    of = lambda row, **how: tuple(dataclasses.replace(x, metrics=metrics, **how) for x in row.cells)
    whole = dataclasses.replace(rows[0], cells=of(rows[0]))
    failed = dataclasses.replace(rows[1], cells=of(rows[1], result=None, error="NonFiniteError: x"))
    captions = {x.name: text for x, text in pictures([whole, failed], {})}
    told = "Training loss. One seed each. No run finished of linear: as far as they came."
    assert captions["loss"] == told
    assert dict((x.name, y) for x, y in pictures([whole], {}))["loss"].endswith("seed each.")


def test_state_is_on_a_logarithmic_axis_of_bytes():
    points = [Point("linear", 1024, 60, None), Point("softmax", 65536, 99, 2.0)]
    drawing, unnamed = state(points, {"chance": 1.0}, palette.looks(["linear", "softmax"]))
    found = texts(drawing.svg)
    assert not unnamed
    assert {"linear", "softmax", "1K", "4K", "16K", "64K"} <= set(found)
    assert [axis.size(x) for x in (1, 512, 1024, 1536, 4**10)] == ["1", "512", "1K", "1.5K", "1M"]
    assert [axis.size(x) for x in (99.97, 999.7, 1023 * 1024)] == ["100", "1000", "1023K"]


def test_what_does_not_decode_is_not_in_the_picture_of_states():
    rows = [variant("softmax", [{"all": 1.0}]), variant("fnet", [{"all": 1.0}])]
    rows[1] = Variant("fnet", rows[1].cells, {"decode_state_bytes": None})
    drawn = {picture.name: texts(picture.svg) for picture, _ in pictures(rows, {})}
    assert list(drawn) == ["tradeoff", "decode-state"]
    assert "fnet" in drawn["tradeoff"]
    assert "fnet" not in drawn["decode-state"]


def test_gigabytes_are_no_power_of_ten_in_the_legend_of_bubbles():
    """A step of 23.5 GB, as on a GPU, had a bubble of 2.35e+04 MB."""
    drawing, _ = tradeoffs.tradeoff(
        [Point("softmax", 2, 60, None, 23.5e9)], {}, palette.looks(["softmax"]), xlabel="x"
    )
    assert {"23,500 MB", "5,875 MB"} <= {*texts(drawing.svg)}


def test_a_baseline_is_named_as_of_validation_where_no_bubble_is():
    points = [Point("softmax", 9.5, 10.6, 0.5, 2e6), Point("linear", 3, 12.0, 0.4, 1e6)]
    with plots.figure() as fig:
        ax = fig.add_subplot()
        ax.set_xlim(0, 12)
        tradeoffs._bubbles(
            ax, points, [30, 9], {"majority": 10.4}, palette.looks(["softmax", "linear"])
        )
        (name,) = [t for t in ax.texts if t.get_text() == "majority 10.4 (validation)"]
        box = name.get_window_extent(fig.canvas.get_renderer())
        x, y = ax.transData.transform((9.5, 10.6))
        assert box.x1 < x - 15 * fig.dpi / 72  # left of a bubble of 30 points that the line crosses
        assert box.y0 < y < box.y1 + 30
        assert box.x0 > ax.transData.transform((3, 0))[0]  # and no further than needed
    rows = [variant("softmax", [{"all": 1.0}])]
    (caption,) = [text for x, text in pictures(rows, {"chance": 0.1}) if x.name == "tradeoff"]
    assert "Baselines, whose accuracies are those on validation, are dashed" in caption


def test_no_line_goes_through_the_name_of_a_baseline():
    """That of the majority class crossed out the chance that is just below it, and a long name left
    of an interval began beyond the axis, across its numbers."""
    baselines = {"chance": 10.0, "majority": 10.4, f"most {'very ' * 5}frequent": 11.2}
    with plots.figure() as fig:
        ax = fig.add_subplot()
        ax.set_xlim(0, 12)
        points = [Point("softmax", 6, 30.0, 40.0), Point("linear", 2, 8.0, None)]
        tradeoffs._bubbles(ax, points, [9, 9], baselines, palette.looks(["softmax", "linear"]))
        renderer = fig.canvas.get_renderer()
        named = [t for t in ax.texts if t.get_text().endswith("(validation)")]
        boxes = [t.get_window_extent(renderer) for t in named]
        left, _ = ax.transData.transform((0, 0))
        lines = [ax.transData.transform((0, y))[1] for y in baselines.values()]
    assert [t.get_text().split(" 1")[0] for t in named] == [*baselines]
    assert not any(box.y0 < y < box.y1 for box in boxes for y in lines)
    assert all(box.x0 >= left for box in boxes)
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


@pytest.mark.parametrize("accuracies", [(0, 0), (100, 100), (1, 99)])
def test_no_accuracy_beyond_0_and_100_is_written(accuracies):
    """Of two variants that answer nothing the axis ran from -1."""
    points = [Point(str(n), n, x, 30.0) for n, x in enumerate(accuracies)]
    with plots.figure() as fig:
        ax = fig.add_subplot()
        ax.set_xlim(-1, 2)
        tradeoffs._bubbles(ax, points, [9, 9], {}, palette.looks(["0", "1"]))
        ticks = ax.get_yticks()
        assert len(ticks) > 1
        assert 0 <= min(ticks) < max(ticks) <= 100
        low, high = ax.get_ylim()
    assert -10 < low < min(accuracies)
    assert max(accuracies) < high < 110


def test_a_line_to_a_name_ends_beside_it():
    """It went on to the middle of the word."""
    names = [f"variant {n}" for n in range(8)]
    points = [Point(name, 5 + n / 50, 50 + n / 50, None) for n, name in enumerate(names)]
    with plots.figure() as fig:
        ax = fig.add_subplot()
        ax.set_xlim(0, 10)
        tradeoffs._bubbles(ax, points, [9] * 8, {}, palette.looks(names))
        lines = [x.get_xydata() for x in ax.lines if len(x.get_xydata()) == 2]
        boxes = [t.get_window_extent(fig.canvas.get_renderer()) for t in ax.texts]
        assert lines
        for line in ax.transData.transform(np.concatenate(lines)).reshape(-1, 2, 2):
            along = line[0] + np.linspace(0, 1, 200)[:, None] * (line[1] - line[0])
            off = lambda b: np.hypot(*np.maximum(0, [b.min - line[1], line[1] - b.max]).max(0))
            own = min(boxes, key=off)
            assert off(own) < 3
            assert not any(own.contains(*place) for place in along)


def test_a_name_without_room_is_told_below_and_lies_on_no_other():
    """33 variants of a study were drawn as a heap of names."""
    names = [f"variant v{n}" for n in range(60)]
    spread = [Point("alone", 5, 90.0, None), Point("fastest", 9, 20.0, None)]
    points = [Point(name, 2.0, 50 + n / 99, 30.0) for n, name in enumerate(names)] + spread
    with plots.figure(*palette.size_for(points)) as fig:
        ax = fig.add_subplot()
        ax.set_xlim(0, 10)
        looks = palette.looks([p.name for p in points])
        unnamed = tradeoffs._bubbles(ax, points, [9] * len(points), {}, looks)
        boxes = [t.get_window_extent(fig.canvas.get_renderer()) for t in ax.texts]
        told = {t.get_text() for t in ax.texts}
        assert unnamed
        assert sorted([*told, *unnamed]) == sorted(looks)
        assert {"variant v0", "alone", "fastest"} <= told  # first, and beaten by none
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    rows = [variant(name, [{"all": 1.0}], model=n) for n, name in enumerate(names)]
    ((drawing, caption), _) = pictures(rows, {})
    found = texts(drawing.svg)
    missing = [x for x in (f"v{n}" for n in range(60)) if x not in found]
    assert drawing.wide
    assert missing
    assert f"No room for the names of {', '.join(missing)}." in caption


def test_words_that_all_names_begin_with_are_in_no_picture():
    assert palette.called(["conv softmax", "conv linear a=1"]) == {
        "conv softmax": "softmax",
        "conv linear a=1": "linear a=1",
    }
    for names in (["conv", "conv linear"], ["a b"], ["a b", "c b"], []):
        assert palette.called(names) == {name: name for name in names}


def test_a_name_wider_than_a_figure_is_on_several_lines():
    """It was cut off at both ends, and the line that it is the name of too."""
    fields = "learning_rate=0.001, mlp_width=128, positions=rotary, norm=rms, batch_size="
    names = [f"softmax {fields}{n}" for n in (32, 64)]
    series = {name: [([1, 2], [0.5, 0.4])] for name in names}
    looks = palette.looks(names)
    svg = learning.curves(series, looks, ylabel="loss", name="loss", log=True).svg
    lines = [x for x in texts(svg) if "=" in x]
    assert " ".join(lines) == " ".join(names)
    assert max(map(len, lines)) < 60  # letters, for which 5.2 inches have room beside a line


def test_many_variants_are_told_apart_by_look_and_have_no_bands():
    names = [f"v{n}" for n in range(56)]
    looks = palette.looks(names)
    assert len(set(looks.values())) == 56
    series = {name: [([1, 2], [n, n + 1]), ([1, 2], [n, n + 2])] for n, name in enumerate(names)}
    bands = lambda x: learning.curves(x, looks, ylabel="loss", name="x", log=False).svg.count(
        "FillB"
    )
    few = dict(list(series.items())[: palette.MANY])
    assert (bands(few) > 0, bands(series)) == (True, 0)


def test_speed_is_that_of_steps_in_turns_where_every_variant_has_them():
    """It was that of training, where one run had the machine alone and another had not."""
    rows = [variant("softmax", [{"all": 1.0}]), variant("linear", [{"all": 1.0}])]
    told = lambda *ms: [
        (texts(x.svg), caption)
        for x, caption in pictures([Variant(r.name, r.cells, m) for r, m in zip(rows, ms)], {})
        if x.name == "tradeoff"
    ]
    ((turns, caption),) = told({"step_ms": 1.0}, {"step_ms": 4.0})
    assert "steps per second, measured in turns within each comparison" in turns
    assert "steps per second measured in turns within each comparison" in caption
    assert "1000" in turns  # and training's 2 steps per second are not there
    ((training, caption),) = told({"step_ms": 1.0}, {})
    assert any(x.startswith("steps per second, while training") for x in training)
    assert "steps per second while training" in caption
    assert "1000" not in training


def test_no_step_is_a_fraction():
    series = {"softmax": [([1, 2], [0.5, 0.6])]}
    drawing = learning.curves(series, palette.looks(["softmax"]), ylabel="loss", name="x", log=True)
    steps = re.findall(r"matplotlib\.axis_1.*?matplotlib\.axis_2", drawing.svg, re.S)[0]
    assert texts(steps)[:3] == ["0", "1", "2"]


def test_every_line_of_a_study_has_a_name():
    told = {}
    for study in (complexity, extrapolation, recall_state):
        folder = Path(study.__file__).parent
        ((svg, _),) = study.figures(json.loads((folder / "results.json").read_text())).values()
        told[folder.name] = texts(svg)
    assert told["extrapolation"].count("chance") == 1
    rungs = {"chance", "any value of the prefix", "k-th question, k-th value"}
    assert rungs <= set(told["recall_state"])
    assert told["complexity"].count("0") == 1 + 1  # steps of what has no loop, and of an exponent
    assert "counted, ± 95% of the fit" in told["complexity"]


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    """Its line had no name, and of several such names there was no legend at all."""
    series = {name: [([1, 2], [3.0, 2.0])] for name in ("_old", "new")}
    style = palette.looks([*series])
    drawing = learning.curves(series, style, ylabel="loss", name="loss", log=True)
    assert {*series} <= {*texts(drawing.svg)}


def test_a_curve_of_one_point_is_a_point():
    series = {"softmax": [([4], [0.5])], "linear": [([4, 8], [0.5, 0.6])]}
    style = palette.looks(list(series))
    drawing = learning.curves(series, style, ylabel="accuracy", name="one", log=False)
    points = lambda name: len(re.findall(f"<use [^>]*{style[name].colour}", drawing.svg))
    assert (points("softmax"), points("linear")) == (2, 0)  # in the axes and in the legend


def test_what_a_variant_attends_to_is_drawn_as_if_it_were_the_only_one():
    draws = np.random.default_rng(0)
    sizes = ((2, 6, 6), (1, 4, 8), (2, 5, 7))  # layers, rows and keys
    looked = {
        f"v{n}": Sight(tuple(draws.random((layers, R, L)) - n / 2), draws.random((R, L)), "looked")
        for n, (layers, R, L) in enumerate(sizes)
    }
    together = [drawing for drawing, _ in attending(looked)]
    for drawing, sight in zip(together, looked.values(), strict=True):
        assert drawing == draw(sight, frame(len(sight.layers) + 1), drawing.name)


def test_a_receptive_field_alone_is_as_large_as_beside_a_matrix():
    """It was twice as large, as pages show both in one width."""
    square = np.ones((4, 4))
    fields = [draw(Sight(x, square, ""), frame(len(x) + 1), "one") for x in ((), (square,))]
    size = [re.search('viewBox="[^"]*"', x.svg).group() for x in fields]
    assert size[0] == size[1]
    assert [x.svg.count("<image") for x in fields] == [1, 2]


@pytest.mark.filterwarnings("error")
def test_letters_of_other_scripts_are_no_warnings_of_text_that_stays_text():
    with plots.figure() as fig:
        fig.text(0.5, 0.5, "线性 ソフト")
        assert texts(plots.svg(fig, "name")) == ["线性 ソフト"]
