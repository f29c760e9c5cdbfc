"""A report is one file that loads nothing, with every variant, failure and picture in it."""

import csv
import dataclasses
import html.parser
import io
import json
import math
import os
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
import rich.console
import rich.table

from experiments import disk, report
from experiments.report import Comparison, palette, plots
from experiments.report.data import Cell, Variant, curves, variants
from experiments.report.pictures import pictures
from experiments.report.sight import Sight
from experiments.report.sortable import hypertext
from experiments.report.spreadsheet import comma_separated
from experiments.report.stats import Score, interval
from experiments.report.table import COLUMNS, markdown, number, terminal, told
from experiments.report.tradeoff import Point, tradeoff
from experiments.stdout import Console
from experiments.validation import flat

NASTY = "<script>alert('x')</script>"
COSTS = {
    "step_compile_seconds": 3.0,
    "step_peak_bytes": 4e6,
    "step_flops": 1.2e9,
    "step_flops_without": "",
    "forward_ms": 0.5,
    "forward_backward_ms": 1.5,
    "attention_peak_bytes": 2e6,
    "attention_flops": 1e8,
    "attention_flops_without": "",
    "decode_state_bytes": None,
}


def cell(variant, seed, accuracy=0.9, error=None):
    result = {
        "test": {"accuracy": accuracy},
        "validation": {"accuracy": accuracy + 0.01},
        "parameters": 12345,
        "steps_per_second": 50.0 + seed,
        "best_step": 20,
        "wall_seconds": 3.0,
    }
    metrics = [{"step": t, "loss": 2 / t} for t in range(1, 31)]
    metrics[-1]["validation"] = {"loss": 0.5, "accuracy": accuracy}
    metrics[9]["validation"] = {"loss": 0.9, "accuracy": accuracy / 2}
    config = {"model": {"attention": {"name": variant}}, "seed": seed}
    name = f"{variant}-{seed}-abc"
    if error:
        return Cell(name, variant, seed, config, None, error)
    return Cell(name, variant, seed, config, result, None, tuple(metrics))


@pytest.fixture(scope="module")
def comparison():
    cells = [cell(v, s, 0.8 + 0.05 * s) for v in ("softmax", "linear", NASTY) for s in (0, 1)]
    cells.append(cell("window", 0, error=f"ValueError: no {NASTY}\nsecond line"))
    costs = {name: COSTS for name in ("softmax", "linear", NASTY)}
    return Comparison(
        title=f"Comparison {NASTY}",
        about="About <b>",
        cells=tuple(cells),
        costs=costs,
        baselines={"chance": 0.1, "majority <class>": 0.75},
        environment={"versions": {"jax": "0.10.2"}, "git": "3f0176a"},
        command="python -m experiments.compare --config=x",
        dates="today",
    )


def render(comparison):
    rows = variants(comparison.cells, comparison.costs)
    return report.render(comparison, list(pictures(rows, comparison.baselines)))


@pytest.fixture(scope="module")
def text(comparison):
    return render(comparison)


class Reader(html.parser.HTMLParser):
    """Collects elements, and checks that they close in order."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]


def test_mean_and_interval_are_students():
    # three seeds: t(0.975, 2) = 4.302653
    mean, half = interval([Score(x) for x in (1.0, 2.0, 3.0)])
    assert mean == 2
    assert half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert interval([Score(0.5), Score(0.7)])[1] == pytest.approx(12.706205 * 0.1, rel=1e-6)


def test_one_seed_has_no_interval():
    assert interval([Score(3.0)]) == (3.0, None)


def test_equal_seeds_are_as_wide_as_a_row_of_the_test():
    cells = [cell(v, s, x) for v, x in (("softmax", 0.9), ("linear", 0.91)) for s in (0, 1)]
    for one, counted in zip(cells, (100, 200, 200, 200)):
        one.result["test"]["answers"] = counted  # of the least
    first, second = variants(cells, {})
    half = math.hypot(12.706205 * 1 / 2**0.5, 1.959964 * 3)  # of seeds, of 100 rows
    assert first.interval("test")[1] == pytest.approx(half)
    assert first.interval("validation") == (pytest.approx(91), None)  # not counted
    assert second.against.text() == "tie (+1.0, p 0.81)"
    assert "90.0 ± 10.7" in markdown([first, second], {})
    assert variants([cell("softmax", 0, error="no")], {})[0].interval("test") is None


def test_the_report_loads_nothing(comparison, text):
    page = Reader(text)
    assert "//" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S)
    assert not {"link", "iframe", "object", "embed", "base"} & set(page.tags)
    links = [value for _, name, value in page.attributes if name in ("src", "href", "srcset")]
    assert all(value.startswith(("#", "data:")) for value in links)
    assert "@import" not in text
    assert "url(http" not in text


def test_nothing_from_a_run_becomes_markup(comparison, text):
    assert NASTY not in text
    assert text.count("<script>") == 1
    assert "About &lt;b&gt;" in text


def test_every_variant_failure_and_picture_is_there(comparison, text):
    for cell in comparison.cells:
        assert html.escape(cell.name) in text
    assert text.count("<svg") == 4
    assert "failed: ValueError: no " in text
    assert "second line" in text.partition("<h2>Failures</h2>")[2].partition("<h2>")[0]
    for fact in ("0.10.2", "3f0176a", "today", comparison.command, "majority &lt;class&gt;"):
        assert fact in text


def test_ids_are_unique_and_references_resolve(text):
    page = Reader(text)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = [v[1:] for _, name, v in page.attributes if name == "href" and v.startswith("#")]
    assert set(used) <= set(ids)


def test_pictures_take_the_pages_ink_and_keep_their_text(comparison, text):
    assert plots.INK not in text
    assert "currentColor" in text
    assert ">softmax</text>" in text


def test_a_variant_has_one_colour_everywhere(comparison, text):
    names = [row.name for row in variants(comparison.cells, {})]
    linear = palette.looks(names)["linear"].colour
    assert text.count(linear) >= 5  # the table and four pictures


def test_the_same_comparison_gives_the_same_bytes(comparison, text):
    assert render(comparison) == text


@pytest.mark.parametrize(
    "name", ["table.md", "results.csv", "report.html", "figures/loss.svg", "figures/loss.png"]
)
def test_a_full_disk_leaves_the_report_that_was_there(name, comparison, tmp_path, monkeypatch):
    (tmp_path / "figures").mkdir()
    (tmp_path / name).write_text("before")
    if name.startswith("figures"):
        (tmp_path / "results.json").write_text('{"figures": ["loss", "tradeoff", "attention-7"]}')
        (tmp_path / "figures/attention-7.svg").write_text("before")
    sync = os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(f".{Path(name).name}.partial"):
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{name}"):
        report.write(comparison, tmp_path)
    assert (tmp_path / name).read_text() == "before"
    assert not [*tmp_path.rglob(".*")]  # what it began filled the disk further
    if name.startswith("figures"):
        assert (tmp_path / "figures/attention-7.svg").read_text() == "before"


def test_files_are_written(comparison, text, tmp_path):
    path = report.write(comparison, tmp_path)
    files = ["figures", "report.html", "results.csv", "results.json", "table.md"]
    assert sorted(x.name for x in tmp_path.iterdir()) == files
    assert path.read_text() == text
    figures = {x.name: x.read_bytes() for x in (tmp_path / "figures").iterdir()}
    assert len(figures) == 2 * text.count("<svg")
    assert all(x.startswith(b"\x89PNG") for name, x in figures.items() if name.endswith(".png"))
    svg = figures["tradeoff.svg"].decode()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    xml.etree.ElementTree.fromstring(svg)
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert [x["result"] for x in numbers["cells"]] == [x.result for x in comparison.cells]
    assert numbers["costs"] == comparison.costs
    assert "metrics" not in numbers["cells"][0]
    assert comparison.command in (tmp_path / "table.md").read_text()


def test_each_command_of_several_is_code_in_the_table(comparison, tmp_path):
    """Markdown ran all but the first into one paragraph."""
    report.write(dataclasses.replace(comparison, command="python a\npython b"), tmp_path)
    assert "\n\n    python a\n    python b\n\ntoday; " in (tmp_path / "table.md").read_text()


def test_all_runs_may_have_failed():
    failed = cell("softmax", 0, error="ValueError: no")
    empty = Comparison("t", "", (failed,), {}, {}, {}, "c", "d")
    text = render(empty)
    assert "failed: ValueError: no" in text
    assert "<svg" not in text
    assert "<h2>Pictures</h2>" not in text


def test_tables_say_mean_interval_seeds_and_failures(comparison):
    table = markdown(variants(comparison.cells, comparison.costs), {"chance": 0.1})
    lines = table.splitlines()
    assert "| softmax | 82.5 ± 31.8 | 83.5 ± 31.8 | — | 2 | 12,345 | 50.5 ± 0.5 |" in table
    assert any(line.startswith("| window, seed 0 | failed: ValueError") for line in lines)
    assert any(line.startswith("| *chance* |  | 10.0 |") for line in lines)
    pipes = {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")}
    assert len(pipes) == 1


def test_a_table_has_the_columns_and_the_notes_that_say_something():
    row = cell("softmax", 0)
    (plain,), (noted,) = (
        variants([x], {}) for x in (row, dataclasses.replace(row, notes={"matched": "+0.1%"}))
    )
    shown = [c.heading for c in told([plain])]
    assert shown[:2] == ["test", "validation"]
    assert "matched" not in shown
    assert "against the first" not in shown
    assert "matched" in [c.heading for c in told([noted])]
    assert "* fairness:" not in markdown([plain], {})
    assert "* fairness:" in markdown([noted], {})
    assert "+0.1%" in markdown([noted], {})


def test_a_variant_of_two_searches_says_what_each_chose_from():
    """Only the first was told, of runs that were the best of more trials too."""
    chosen = [{"searched": f"rate=1, best of {n}"} for n in (2, 2, 9)]
    cells = [dataclasses.replace(cell("linear", n), notes=x) for n, x in enumerate(chosen)]
    (column,) = (c for c in COLUMNS if c.heading == "searched")
    (row,) = variants(cells, {})
    assert column.text(row) == "rate=1, best of 2; rate=1, best of 9"


def test_a_column_of_words_has_no_button_that_sorts_nothing():
    """A click on it drew an arrow, and left all rows where they were."""
    of = lambda n: dataclasses.replace(cell(n, 0), notes={"matched": f"width {len(n)}"})
    rows = variants([of("softmax"), of("linear")], {})
    page = hypertext(rows, {}, palette.looks(["softmax", "linear"]))
    assert "width 7" in page
    assert re.search(r"<th[^>]*>matched</th>", page)
    for heading in ("variant", "test", "parameters"):
        assert re.search(rf'<th[^>]*><button type="button">{heading}<', page)


@pytest.mark.parametrize(
    ("steps", "warmup", "noted", "shown"),
    [
        (999, 1000, True, "999 (inside the warm-up of 1,000)"),
        (1000, 1000, True, "1,000"),  # its last step is made at the full rate
        (999, 1000, False, "—"),  # no budget: both are as the configuration says
    ],
)
def test_a_budget_that_ends_inside_the_warm_up_is_told(steps, warmup, noted, shown):
    """Its rate never was what the configuration says, and nothing told it."""
    config = {"train": {"steps": steps}, "optimizer": {"warmup_steps": warmup}}
    notes = {"steps": f"{steps:,}"} if noted else {}
    (row,) = variants([dataclasses.replace(cell("linear", 0), config=config, notes=notes)], {})
    (column,) = (c for c in COLUMNS if c.heading == "steps")
    assert column.text(row) == shown


def test_the_table_of_a_terminal_fits_80_characters(comparison):
    shown = io.StringIO()
    rows = variants(comparison.cells, comparison.costs)
    rich.console.Console(file=shown, width=80).print(terminal(rows))
    assert "…" not in shown.getvalue()
    assert "against the first" in shown.getvalue()


def test_a_printed_table_is_wrapped_at_the_edge_of_a_terminal_and_has_none_in_a_log(
    capsys, monkeypatch
):
    """It was cut in both: by what tells rows apart, intervals and p."""
    long = "softmax learning_rate=0.001, optimizer.warmup_steps=1000, positions=rotary"
    cells = [cell(f"{long}, width={n}", s, n / 100 + s / 50) for n in (64, 80) for s in (0, 1)]
    rows = variants(cells, {c.variant: COSTS for c in cells})
    monkeypatch.delenv("COLUMNS", raising=False)
    Console().print(terminal(rows))
    line = next(x for x in capsys.readouterr().out.splitlines() if "width=80" in x)
    assert long in line
    assert "81.0 ± 12.7" in line
    assert rows[1].against.text() in line
    shown = io.StringIO()
    rich.console.Console(file=shown, width=80).print(terminal(rows))
    assert "…" not in shown.getvalue()
    assert "width=80" in shown.getvalue()
    assert "81.0 ± 12.7" in shown.getvalue()


def test_a_path_or_a_name_is_printed_as_it_is(capsys, monkeypatch):
    """The report was said to be in `runs/`, a folder that is not there."""
    monkeypatch.setenv("COLUMNS", "80")
    console = Console()
    console.print("report: runs[bold]/:bug:/report.html", highlight=False)
    table = rich.table.Table("[red]heading")
    table.add_row("x[/red]")  # which was an error
    console.print(table)
    out = capsys.readouterr().out
    assert all(x in out for x in ("runs[bold]/:bug:/report.html", "[red]heading", "x[/red]"))


def test_what_is_said_of_each_of_several_comparisons_is_a_paragraph(comparison):
    """Their lines ran together into one."""
    said = render(dataclasses.replace(comparison, about="a: one <b>.\nb: two."))
    assert "<p>a: one &lt;b&gt;.</p>" in said
    assert "<p>b: two.</p>" in said


def test_csv_has_a_line_for_each_cell(comparison):
    rows = variants(comparison.cells, comparison.costs)
    found = list(csv.DictReader(io.StringIO(comma_separated(rows))))
    assert len(found) == len(comparison.cells)
    assert found[0]["test.accuracy"] == "0.8"
    assert found[0]["step_flops"] == "1200000000.0"
    assert [x["status"] for x in found].count("failed") == 1
    assert found[-1]["error"].startswith("ValueError")


def test_csv_has_a_column_for_each_slice():
    """They stood in results.json alone, of which a spreadsheet makes nothing."""
    softmax, linear, failed = cell("softmax", 0), cell("linear", 0), cell("window", 0, error="x")
    softmax.result["test"]["slices"] = {"4 pairs": 0.5, "8 pairs, 0.1": 0.25}
    linear.result["test"]["slices"] = {"4 pairs": 0.75, "16 pairs": 0.125}
    rows = variants([softmax, linear, failed], {})
    found = list(csv.DictReader(io.StringIO(comma_separated(rows))))
    names = [name for name in found[0] if name.startswith("test.slices.")]
    assert names == [f"test.slices.{x}" for x in ("4 pairs", "8 pairs, 0.1", "16 pairs")]
    assert [[row[name] for name in names] for row in found] == [
        ["0.5", "0.25", ""],
        ["0.75", "", "0.125"],
        ["", "", ""],
    ]
    softmax.result["test"]["slices"] = {"all": 0.9}
    assert ".slices" not in comma_separated(variants([softmax], {}))


def test_a_lower_bound_is_marked():
    cost = COSTS | {"step_flops_without": "while loop"}
    (row,) = variants([cell("softmax", 0)], {"softmax": cost})
    assert "≥ 1.20" in markdown([row], {})


def test_times_stand_beside_their_spread():
    """Half of the rounds of one step were within 6 ms of 21; the table said 20.6 and no more."""
    timed = {"step_ms": 20.6156, "step_ms_spread": 6.648, "forward_ms_spread": 0.04}
    rows = variants([cell("softmax", 0), cell("linear", 0)], {"softmax": COSTS | timed})
    table = markdown(rows, {})
    assert "| 20.6 ± 3.3 |" in table
    assert "| 0.500 ± 0.020 |" in table
    assert "| 1.50 |" in table  # of an older version
    assert "| 12,345 | 50.0 | 20.6 ± 3.3 |" in table  # one seed has no range
    assert "± half of the range" in table
    shown = io.StringIO()
    rich.console.Console(file=shown, width=80).print(terminal(rows))
    assert "20.6 ± 3.3" in shown.getvalue()


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (None, "—"),
        (0, "0"),
        (0.01234, "0.0123"),
        (9.876, "9.88"),
        (9.996, "10.0"),
        (-0.9999, "-1.00"),
        (999.7, "1,000"),
        (1234.5, "1,234"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers_have_three_digits(x, shown):
    assert number(x) == shown


def test_long_curves_are_averaged_not_cut():
    long = dataclasses.replace(
        cell("a", 0), metrics=tuple({"step": t, "loss": float(t)} for t in range(1, 1001))
    )
    ((steps, values),) = curves(Variant("a", (long,), {}), "loss", 2)
    assert len(steps) <= 120
    assert values == pytest.approx([2 * t for t in steps])
    assert steps[0] == pytest.approx(5)


def test_a_step_that_one_seed_passed_over_ends_no_curve():
    """The steps of seeds were averaged in groups that were no longer the same, and only those that
    all seeds have are drawn."""
    rows = [{"step": t, "loss": float(t)} for t in range(1, 1001)]
    seeds = [dataclasses.replace(cell("a", s), metrics=tuple(rows)) for s in (0, 1)]
    rows[36] = {"step": 37, "skipped": "loss"}
    seeds[1] = dataclasses.replace(seeds[1], metrics=tuple(rows))
    (steps, values), (others, skipping) = curves(Variant("a", tuple(seeds), {}), "loss", 1)
    assert steps == others
    assert (len(steps), values) == (112, steps)
    assert skipping == pytest.approx(values, abs=0.5)


def test_flat_names_are_dotted():
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_names_of_many_variants_do_not_overlap():
    """Names beside bubbles once lay on each other; positions are read from the picture."""
    names = [f"variant {n}" for n in range(12)]
    points = [
        Point(name, 10 + n % 4, 80 + n, 1.0 if n % 2 else None, 1e6 * (n + 1))
        for n, name in enumerate(names)
    ]
    drawing, unnamed = tradeoff(points, {}, palette.looks(names), xlabel="steps per second")
    assert not unnamed
    text = drawing.svg
    places = re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)[^>]*">(variant \d+)<', text)
    places = places or re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>(variant \d+)<', text)
    assert len(places) == 12
    at = [(float(x), float(y)) for x, y, _ in places]
    for i, a in enumerate(at):
        for b in at[:i]:
            assert abs(a[0] - b[0]) > 30 or abs(a[1] - b[1]) > 7


@pytest.fixture(scope="module")
def again(comparison, tmp_path_factory):
    """A report of looked at runs, written where one of other figures lay."""
    folder = tmp_path_factory.mktemp("again")
    names = ["attention-7", "loss", "../kept", 3]
    (folder / "results.json").write_text(json.dumps({"figures": names}))
    (folder / "figures").mkdir()
    for name in ("figures/attention-7.svg", "figures/attention-7.png", "figures/mine.png"):
        (folder / name).write_text("")
    (folder / "kept.svg").write_text("")
    sights = {
        "v0": Sight((), np.eye(4), "looked", (0.25, None, 0.75)),
        "softmax": Sight((), np.eye(4), "of an older version"),
    }
    cells = (*comparison.cells, cell("v0", 0))
    report.write(dataclasses.replace(comparison, cells=cells, sights=sights), folder)
    return folder


def test_each_figure_is_shown_once_and_what_was_not_looked_at_says_why(comparison, tmp_path):
    why = "not looked at: CheckpointError: no <good> one"
    sights = {"v0": Sight((), np.eye(4), "looked"), "softmax": Sight((), np.zeros((0, 0)), why)}
    cells = (*comparison.cells, cell("v0", 0))
    report.write(dataclasses.replace(comparison, cells=cells, sights=sights), tmp_path)
    page = (tmp_path / "report.html").read_text()
    figures = json.loads((tmp_path / "results.json").read_text())["figures"]
    attending = page.partition("What each variant attends to</h2>")[2].partition("<h2>")[0]
    assert page.count("<figure") == len(figures) > 1
    assert attending.count("<figure") == 1
    assert re.findall('<p class="soft">(softmax|v0): (.*?)</p>', attending) == [
        ("softmax", html.escape(why))
    ]


def test_the_error_to_softmax_is_in_every_form(again):
    rows = {row["variant"]: row for row in csv.DictReader((again / "results.csv").open())}
    assert rows["v0"]["softmax_error"] == "0.5"
    assert rows["softmax"]["softmax_error"] == ""
    numbers = json.loads((again / "results.json").read_text())
    assert numbers["costs"]["v0"]["softmax_error"] == 0.5
    assert numbers["softmax_errors"] == {"v0": [0.25, None, 0.75], "softmax": None}
    page = (again / "report.html").read_text()
    assert "error of each layer to softmax: 25.0%, —, 75.0%" in page
    assert 'data-value="50.0">50.0</td>' in page
    assert "to softmax: error (%)" in (again / "table.md").read_text()


def test_a_report_removes_the_figures_of_the_one_before_and_nothing_else(again):
    figures = again / "figures"
    assert {p.stem for p in figures.glob("attention-*")} == {"attention-0", "attention-1"}
    assert (figures / "loss.svg").read_text()
    assert (figures / "mine.png").exists()
    assert (again / "kept.svg").exists()
    listed = json.loads((again / "results.json").read_text())["figures"]
    assert {p.stem for p in figures.iterdir()} == {*listed, "mine"}
