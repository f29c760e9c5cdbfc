"""What README and CONTRIBUTING say is run as it stands there."""

import csv
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import runpy
import statistics
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import pytest

import attn
from experiments.fairness import fairness
from experiments.report import benchmark
from experiments.report.stats import LEVEL, Score, holm, paired

ROOT = pathlib.Path(__file__).parent.parent


def blocks(name):
    text = (ROOT / name).read_text()
    return [textwrap.dedent(b) for b in re.findall(r"^ *```python\n(.*?)^ *```", text, re.M | re.S)]


@pytest.mark.slow
def test_readme_examples_run(capsys):
    names = {}
    first, options, gates, patterns, fair, second, decoding, third = blocks("README.md")
    exec(first + options + gates + second, names)
    assert jnp.allclose(
        names["whole"], attn.dot_product_attention(*map(names.get, "qkv")), atol=1e-5
    )
    assert names["exact"].shape == names["local"].shape == names["cheap"].shape == (2, 1000, 8, 64)
    assert names["gated"].shape == names["delta"].shape == names["out"].shape == (2, 1000, 8, 64)
    assert names["state"].kv.shape == (2, 2, 64, 64)
    assert names["scores"].shape == (8, 10)
    exec(decoding, names)
    assert names["text"].shape == (8, 25)
    assert names["next_scores"].shape == (8, 100)
    *drawing, picked = capsys.readouterr().out.strip().splitlines()
    drawing = "\n".join(drawing)
    assert picked == "blockwise"
    assert textwrap.indent(drawing, "    ") in (ROOT / "README.md").read_text()
    assert third.startswith("print(attn.testing.check(")
    exec(patterns, names)
    assert names["near"].shape == names["by_head"].shape == (2, 1000, 8, 64)
    assert "of pairs visible" in capsys.readouterr().out
    exec(fair, said := {})
    assert fairness(said, "README.md").search


def test_readme_primitive_example_is_short():
    assert len(blocks("README.md")[0].strip().splitlines()) <= 13


OUTSIDE = """
from experiments.config import mechanism, task

def get_config():
    model = {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8}
    train = {"steps": 2, "batch_size": 4, "eval_every": 2}
    rate = {"learning_rate": 1e-3}
    return {"task": task("digits"), "model": model, "optimizer": rate, "train": train}

def sweep():
    for seed in range(2):
        yield {"model.attention": mechanism("tempered", temperature=3.0), "seed": seed}
"""


@pytest.mark.slow
def test_a_mechanism_outside_the_repository_is_compared(tmp_path):
    mine, driver = blocks("CONTRIBUTING.md")
    for name, text in {"mine.py": mine, "driver.py": driver, "config.py": OUTSIDE}.items():
        (tmp_path / name).write_text(text)
    options = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
    found = subprocess.run(
        [sys.executable, tmp_path / "driver.py", *options, "--processes=2"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "tempered" in (tmp_path / "run/table.md").read_text()


@pytest.mark.slow
def test_contributing_example_keeps_the_laws_it_is_shown_for():
    names = {}
    example, _ = blocks("CONTRIBUTING.md")
    exec(example, names)
    from attn.testing import check

    for mechanism in names["Tempered"].examples():
        check(mechanism, only=["refuses_the_rest", "any_length_works"]).raise_if_broken()


COMMAND = re.compile(
    r"python -m experiments\.(train|compare|benchmark) .*?(?=\n *\n|`|\n *python|\"\"\")", re.S
)


def documented(text):
    """(workdir, what sets the configuration) of each command that trains."""
    for command in COMMAND.finditer(text):
        words = re.findall(r"(--[\w.]+)=(\S+)", command[0])
        if workdir := dict(words).get("--workdir"):
            settings = {w for w in words if w[0] not in ("--workdir", "--processes")}
            yield workdir, (command[1], *sorted(settings))


def test_no_two_documented_commands_want_one_directory():
    paths = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("configs/*.py")]
    found = [x for path in paths for x in documented(path.read_text())]
    assert len(found) > 30
    wanted = {}
    for workdir, settings in found:
        wanted.setdefault(workdir, set()).add(settings)
    assert not {workdir: x for workdir, x in wanted.items() if len(x) > 1}


def test_a_command_of_two_lines_is_one_where_it_is_copied_to_a_shell():
    """Two backslashes ended the first line, for Python; a shell took one of them as an argument."""
    lines = [line for path in ROOT.glob("configs/*.py") for line in path.read_text().splitlines()]
    ends = [re.search(r"\\+$", line) for line in lines]
    assert {end[0] for end in ends if end} == {"\\"}


def test_the_page_on_speed_says_how_fast_the_machine_of_each_benchmark_was():
    said = (ROOT / "docs/speed.md").read_text().partition("matrix-product peak beside each")[2]
    told = said.partition("\n\n")[0].partition("; on Intel")[::2]
    for machine, text in zip(("amd-epyc-2-cores", "intel-xeon-2-cores"), told, strict=True):
        peaks = {}
        for path in ROOT.glob(f"benchmarks/{machine}/*.md"):
            if found := re.search(r"matrix product peak: (\d+) GFLOP/s", path.read_text()):
                peaks[path.stem] = found[1]
        assert len(peaks) > 5
        assert dict(re.findall(r"`([\w-]+)`\s(\d+)", text)) == peaks


@pytest.mark.parametrize("name", ["README.md", "docs/speed.md"])
def test_ratios_to_what_people_use_are_those_of_the_data(name):
    """They once came from numbers that had been rounded before."""
    machines = [
        {
            (row["T"], row["mode"], row["contender"]): row.get("minimum")
            for row in json.loads(path.read_text())["suites"]["softmax"]["rows"]
        }
        for path in sorted(ROOT.glob("benchmarks/*/softmax.json"))  # AMD, Intel
    ]
    head, _, *rows = re.search(
        r"^\| T \| mode \| jax.nn .*?\n\n", (ROOT / name).read_text(), re.M | re.S
    )[0].splitlines()[:-1]
    peers = head.split(" | ")[2:-1]
    for row in rows:
        T, mode, *told = row.strip("| ").split(" | ")
        of = lambda found, peer: found[int(T.replace(",", "")), mode, peer]
        for peer, ratios in zip(peers, told):
            if ratios != "–":
                want = [f"{of(found, 'attn') / of(found, peer):.2f}" for found in machines]
                assert ratios == " / ".join(want), (T, mode, peer)


def test_patterns_are_as_many_times_as_fast_as_in_the_data():
    """BigBird's 12.49 was 13: rounded from a number that had been rounded before."""
    text = (ROOT / "docs/speed.md").read_text().partition("## Sparse patterns")[2]
    cells = [[x.strip() for x in line.split("|")[1:-1]] for line in text.splitlines()[4:8]]
    (_, *names), _, *told = cells
    folders = {"AMD": "amd-epyc-2-cores", "Intel": "intel-xeon-2-cores"}
    assert [machine for machine, *_ in told] == [*folders]
    for machine, *ratios in told:
        found = json.loads((ROOT / f"benchmarks/{folders[machine]}/sparse.json").read_text())
        at = lambda row: row["T"] == 16384 and row["mode"] == "forward + backward"
        rows = filter(at, found["suites"]["sparse"]["rows"])
        least = {row["contender"]: row["minimum"] for row in rows}
        least["window"] = least["attn"]  # the suite's own
        times = [least["softmax"] / least[name.removesuffix(" (256)")] for name in names]
        assert ratios == [f"{x:.0f}" for x in times], machine


def test_benchmarks_read_as_their_data_is_written_today():
    """Their notes once said of what was timed what had long been corrected."""
    found = list(ROOT.glob("benchmarks/*/*.json"))
    assert len(found) > 5
    for path in found:
        data = json.loads(path.read_text())
        text = benchmark.markdown(data["suites"], data["environment"])
        assert path.with_suffix(".md").read_text() == text, path


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / f"scripts/{name}"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def test_sizes_of_blocks_are_timed(capsys):
    """Nobody ran it, and what it called had another name."""
    script("blocks").main([8])
    forward, both = capsys.readouterr().out.splitlines()
    assert "T      8  forward             block    8 x    8" in forward
    assert "forward + backward" in both
    assert both.endswith("1.00 a visited score")


@pytest.mark.parametrize("wrong", ["0", "-3", "1.5", "512,"])
def test_blocks_of_no_length_are_refused_in_one_line(wrong, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/blocks", "8", wrong])
    with pytest.raises(SystemExit, match=f"expected lengths of at least 1, got {wrong}$"):
        runpy.run_path(str(ROOT / "scripts/blocks"), run_name="__main__")


def test_pages_on_mechanisms_are_those_of_the_code():
    module = script("mechanisms")
    for page in module.WRITTEN:
        assert module.renewed(page) == (ROOT / page).read_text(), "run scripts/mechanisms"


def test_the_newest_changes_are_those_of_this_version():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert newest == attn.__version__


def test_counts_of_reliability_are_those_of_its_page():
    """Of mistakes planted README still said 82 when there were 87."""
    said = (ROOT / "README.md").read_text().partition("docs/reliability.md): ")[2]
    counts = re.findall(r"\d[\d,]*", said.partition("\n\n")[0])
    page = (ROOT / "docs/reliability.md").read_text()
    assert len(counts) > 7
    assert not {x for x in counts if not re.search(rf"(?<![\d,]){x}(?!\d)", page)}


def read_csv(name: str) -> list[dict[str, str]]:
    with (ROOT / f"benchmarks/accuracy/{name}.csv").open() as file:
        return list(csv.DictReader(file))


def runs_and_table(name: str) -> tuple[list[dict[str, str]], list[list[str]]]:
    """The committed runs of a config, and the rows of the table in its docstring."""
    lines = (ROOT / f"configs/{name}.py").read_text().splitlines()
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in lines if "|" in line]
    return read_csv(name), rows


def test_what_is_kept_of_each_token_says_what_its_runs_came_to():
    runs, rows = runs_and_table("kv_cache")
    assert len(runs) == 15
    for name, _, parameters, _, accuracy in rows[2:]:
        mixer, heads = name.replace(" key heads", "").replace(" key head", "").split(", ")
        of = [run for run in runs if run["variant"] == f"{mixer} kv_heads={heads}"]
        assert [run["seed"] for run in of] == ["0", "1", "2"], name
        both = [float(run[x]) for run in of for x in ("test.accuracy", "validation.accuracy")]
        assert f"{100 * statistics.fmean(both):.1f}" == accuracy, name
        assert {run["parameters"] for run in of} == {parameters.replace(",", "")}, name
    found = {row[0]: (int(row[2].replace(",", "")), float(row[3].split()[0])) for row in rows[2:]}
    pairs = [(found[f"softmax, {n}"], found[f"latent, {n}"]) for n in ("2 key heads", "1 key head")]
    two, one = (f"{a - b:.3f}" for (_, a), (_, b) in pairs)
    more = " and ".join(f"{100 * (b / a - 1):.0f}" for (a, _), (b, _) in pairs)
    text = " ".join((ROOT / "configs/kv_cache.py").read_text().split())
    assert f"by {two} (two) and {one} (one), with {more}% more parameters" in text


def test_shakespeare_says_what_its_runs_came_to():
    """It stood for one seed, of which no data was kept."""
    runs, rows = runs_and_table("bytes")
    readme = (
        (ROOT / "README.md").read_text().partition("On Shakespeare")[2].partition("The large")[0]
    )
    for variant in ("softmax", "window", "linear", "gated_delta_net"):
        of = [run for run in runs if run["variant"] == variant]
        assert [run["seed"] for run in of] == ["0", "1", "2"]
        mean = lambda *names: statistics.fmean(float(run[x]) for run in of for x in names)
        accuracy = f"{100 * mean('test.accuracy', 'validation.accuracy'):.1f}"
        (row,) = (row for row in rows if row[0].split()[0] == variant)
        assert [row[2], row[4]] == [f"{mean('test.loss'):.3f}", accuracy], variant
        assert accuracy in readme, variant


def recall_table() -> tuple[dict[str, tuple[float, list[str]]], str]:
    """variant -> (rate, percentages) of the table in configs/recall_mixed.py, and what is below."""
    text = (ROOT / "configs/recall_mixed.py").read_text().partition("32 in 128\n")[2]
    table, _, below = text.partition("\n\n")
    found, rate = {}, None
    for line in table.splitlines():
        *words, at, whole, a, b, c, four, eight, sixteen, more = line.split()
        rate = rate if at == '"' else float(at)
        found[" ".join(words)] = rate, [whole, a, b, c, four, eight, sixteen, more]
    return found, " ".join(below.split())


def test_recall_of_more_pairs_says_what_its_runs_came_to():
    """No data stood behind it, and its runs were of two commits."""
    runs, (table, _) = read_csv("recall_mixed"), recall_table()
    assert (len(runs), len(table)) == (33, 11)
    asked = (ROOT / "README.md").read_text().partition("On `recall_mixed`")[2].partition("\n\n")[0]
    for variant, (_, said) in table.items():
        of = [run for run in runs if run["variant"] == variant]
        assert [run["seed"] for run in of] == ["0", "1", "2"], variant
        percent = lambda of, name: f"{100 * statistics.fmean(float(run[name]) for run in of):.1f}"
        by_pairs = [name for name in of[0] if name.startswith("test.slices.")]
        found = [percent([run], "test.accuracy") for run in of]
        found += [percent(of, name) for name in by_pairs]
        assert [percent(of, "test.accuracy"), *found] == said, variant
        assert said[0] in asked, variant


def test_recall_of_more_pairs_is_at_the_best_of_its_trials():
    trials, (table, below) = read_csv("recall_mixed_trials"), recall_table()
    assert len(trials) == 44
    tried = {variant: {} for variant in table}
    for trial in trials:
        percent = 100 * float(trial["validation.accuracy"])
        tried[trial["variant"]][float(trial["learning_rate"])] = percent
    best = {variant: max(rates, key=rates.__getitem__) for variant, rates in tried.items()}
    assert best == {variant: rate for variant, (rate, _) in table.items()}
    largest = [sorted(tried[variant].values()) for variant in table if best[variant] == 0.03]
    assert len(largest) == 4
    assert f"by at most {max(x[-1] - x[-2] for x in largest):.1f} points" in below
    rates = tried["delta_net 32"]
    assert f"answered {rates[0.002]:.1f} and {rates[0.0125]:.1f}%" in below


def test_recall_of_more_pairs_calls_nothing_better_that_its_seeds_do_not_establish():
    """delta_net recalled more than linear, it said: of 64 with two seeds of three."""
    _, below = recall_table()
    scores = {}
    for run in read_csv("recall_mixed"):
        score = Score(float(run["test.accuracy"]), float(run["test.answers"]))
        scores.setdefault(run["variant"], []).append(score)
    softmax = scores.pop("softmax")
    ps = holm({variant: paired(softmax, of) for variant, of in scores.items()})
    assert f"(p at most {max(ps.values()):.3f}, corrected)" in below
    both = {n: (scores[f"linear {n}"], scores[f"delta_net {n}"]) for n in ("16", "32", "64")}
    first, *others = holm({n: paired(*each) for n, each in both.items()}).values()
    assert min(first, *others) >= LEVEL
    assert f"p {first:.3f}, {others[0]:.2f} and {others[1]:.2f} with 16, 32 and 64" in below
    behind = {n: sum(b.accuracy < a.accuracy for a, b in zip(*each)) for n, each in both.items()}
    assert behind == {"16": 0, "32": 0, "64": 1}
