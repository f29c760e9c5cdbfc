"""The studies: their identities at a small size, their commands, and READMEs that say what was
measured."""

import dataclasses
import functools
import json
import os
import re
import sys
from statistics import fmean

import jax
import numpy as np
import pytest
from full_disk import full_disk

from attn import MECHANISMS
from attn.nn import with_kv_heads
from experiments import disk
from experiments.cells import FAILURE
from experiments.config_file import read
from experiments.errors import ConfigError, LabError
from experiments.provenance import ROOT
from experiments.studies import conversion, heads, record
from experiments.studies.conversion import __main__ as conversion_command
from experiments.studies.conversion import uptraining
from experiments.studies.conversion.convert import convert
from experiments.studies.extrapolation import __main__ as extrapolation_command
from experiments.studies.extrapolation import runs as extrapolation
from experiments.studies.extrapolation import tables as extrapolation_tables
from experiments.studies.heads import __main__ as heads_command
from experiments.studies.heads import (
    alike,
    gradients,
    matrices,
    projection,
    relations,
    single_pattern,
    training,
)
from experiments.studies.heads.inputs import Sizes
from experiments.studies.lra import __main__ as lra_command
from experiments.studies.lra import runs as lra
from experiments.studies.lra_defects import __main__ as defects_command
from experiments.studies.lra_defects import measure as defects
from experiments.studies.lra_speed import __main__ as speed_command
from experiments.studies.lra_speed import measure as lra_speed
from experiments.studies.lra_speed import tables as speed_tables
from experiments.studies.pretraining import __main__ as pretraining_command
from experiments.studies.pretraining import runs as pretraining
from experiments.studies.recall_state import __main__ as recall_command
from experiments.studies.recall_state import runs as recall
from experiments.studies.tasks import __main__ as tasks_command
from experiments.studies.tasks import runs as tasks
from experiments.studies.tasks import tables as tasks_tables
from experiments.studies.tpu import __main__ as tpu_command

SMALL = Sizes(width=12, heads=4, length=7, batch=2)
ROUNDING = 1e-5
LISTOPS = lra.TASKS["listops"]
SHORT = {"min_length": 3, "max_length": 12, "train": 200, "validation": 20, "test": 20}
TINY_LISTOPS = dataclasses.replace(
    LISTOPS,
    task=LISTOPS.task | SHORT,
    model={"layers": 1, "width": 8, "mlp_width": 16},
    batch_size=4,
)
COMMANDS = {
    "heads": heads_command,
    "conversion": conversion_command,
    "pretraining": pretraining_command,
    "lra": lra_command,
    "lra_speed": speed_command,
    "extrapolation": extrapolation_command,
    "recall_state": recall_command,
    "tasks": tasks_command,
}
WRITTEN = COMMANDS | {"lra_defects": defects_command, "tpu": tpu_command}


@pytest.mark.slow
def test_equal_shapes_and_other_results_from_the_same_projections():
    found = projection.measure(SMALL)
    one, many = found["shapes"]["1"], found["shapes"]["4"]
    same = [name for name in one if one[name] == many[name]]
    assert same == ["x W_q (and x W_k, x W_v)", "the same numbers, side by side", "times W_o"]
    assert one["attention matrices"] == [2, 1, 7, 7]
    assert many["attention matrices"] == [2, 4, 7, 7]
    for row in found["outputs"]:
        assert row["loop over heads"] < ROUNDING
        assert min(row["one head"], row["one head, same scale"]) > 0.1


@pytest.mark.slow
def test_one_head_is_the_product_of_the_heads_and_their_scores_its_sum():
    found = matrices.measure(SMALL)
    for name in ("sum of scores", "product, same scale", "product, own scale"):
        assert found[name] < ROUNDING
    assert found["mean of matrices"] > 0.1
    assert [found["patterns"][n]["rank"] for n in ("1", "4")] == [1, 4]


@pytest.mark.slow
def test_gradients_of_one_head_are_not_those_of_several():
    found = gradients.measure(SMALL)
    assert found["columns"] == {"1": 1.0, "4": 0.25}
    for row in found["weights"].values():
        assert row["loop over heads"] < ROUNDING
        assert min(row["difference"], row["difference, same scale"]) > 0.1


def test_heads_alike_are_one_narrow_head_with_wide_values():
    found = alike.measure(SMALL)
    assert found["between heads"] == 0
    assert found["narrow head, wide values"] < ROUNDING
    assert found["one wide head, scale / h"] < ROUNDING
    assert found["one wide head, own scale"] > 0.1
    assert found["patterns"]["rank"] == 1


def test_answers_are_the_tokens_before():
    for task in (relations.Task(), relations.Task(joint=True)):
        tokens, answers = task.batch(jax.random.key(0), 5)
        one, three = tokens[:, 2:-1], tokens[:, :-3]
        want = [one + 8 * three] if task.joint else [one, three]
        np.testing.assert_array_equal(answers, np.stack(want, -1))
        assert answers.max() < task.classes


def test_values_do_not_know_their_place_unless_marked():
    # else one head could tell by the mixture alone which token came from where
    p = relations.init(jax.random.key(0), relations.Task(), 8)
    tokens = np.full((1, 12), 3)
    *_, plain = relations.project(p, tokens, relations.Task(), 2)
    *_, marked = relations.project(p, tokens, relations.Task(marked=True), 2)
    np.testing.assert_array_equal(plain, plain[:, :1] + np.zeros_like(plain))
    assert not np.allclose(marked, marked[:, :1])


def test_no_mixture_gives_both_tokens():
    found = single_pattern.measure(4, steps=300)
    for row in found["mixtures"]:
        assert (row["first"] + row["second"]) / 2 <= found["order-blind, both"] + 1e-6


def test_the_first_head_of_each_group_is_kept():
    s = uptraining.Settings(width=16)
    base = uptraining.encoder(s, 0)
    heads_of = lambda e: np.asarray(e.stack.blocks[0].attention.qkv[...])
    old = heads_of(base)[:, 16:].reshape(16, 2, 4, 4)
    new = heads_of(convert(base, 2, "first", key=jax.random.key(0)))[:, 16:].reshape(16, 2, 2, 4)
    np.testing.assert_array_equal(new, old[:, :, ::2])
    mean = convert(base, 2, "mean", key=jax.random.key(0))
    np.testing.assert_array_equal(heads_of(mean), heads_of(with_kv_heads(base, 2)))
    fresh = heads_of(convert(base, 2, "random", key=jax.random.key(0)))
    np.testing.assert_array_equal(fresh[:, :16], heads_of(base)[:, :16])
    assert 0.5 < fresh[:, 16:].std() / old.std() < 2


@pytest.mark.parametrize("name", WRITTEN)
def test_a_readme_says_what_was_measured(name):
    folder = WRITTEN[name].FOLDER
    results = json.loads((folder / "results.json").read_text())
    text = (folder / "README.md").read_text()
    assert record.renewed(text, WRITTEN[name].blocks(results)) == text
    assert results["run"]["command"] in text
    pictures = re.findall(r"\]\((\w+\.png)\)", text)
    assert pictures
    for picture in pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert (folder / picture).with_suffix(".svg").exists()
    for linked in re.findall(r"\]\(([\w./]+)\)", text):
        assert (folder / linked).exists(), linked
    assert sum(p.stat().st_size for p in folder.glob("*.*") if p.suffix != ".py") < 300_000


def test_where_there_is_no_compiler_for_tpus_it_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    assert tpu_command.main([f"--out={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert "TPU_LIBRARY_PATH: expected the path of libtpu.so, got " in told
    assert "pip install" in told


def test_what_is_too_little_for_a_logarithm_is_said_to_be():
    """0 bytes of temporaries stood at 0.1 MB without a word."""
    text = (tpu_command.FOLDER / "temporaries.svg").read_text()
    assert "temporaries, MB (0.1: at most that)" in text


@pytest.mark.slow
def test_published_layers_differ_where_the_study_says():
    sizes = defects.Sizes(length=24, block=4, width=8, features=16, draws=1)
    found = {name: defect(sizes, 0) for name, defect in defects.DEFECTS.items()}
    own = found["local"]["own block"]
    assert own["published"] < 0.5
    assert own["ours"] == 1
    sorter = found["sinkhorn"]["gradient of the sorter"]
    assert sorter["published"] < 1e-5 < 1e-3 < sorter["ours"]
    assert found["reformer"]["pairs alike in two layers"]["published"] == 1
    assert found["reformer"]["change by padding"]["ours"] == 0
    past = found["performer"]["change of the past"]
    assert past["published"] > 0.01
    assert past["ours"] == 0


def test_what_a_study_did_not_record_is_said():
    run = record.about("python -m x", 7.0)
    assert f"{run['started']}, commit {run['git']}." in record.run_line({"run": run})
    first = {k: v for k, v in run.items() if k not in ("started", "git")}
    assert record.run_line({"run": first}).endswith("; date and commit not recorded.")


def test_a_study_names_what_it_ran_on(monkeypatch):
    """Pinned to one core it told of all there are, and on a GPU of the processor beside it."""
    monkeypatch.setattr(record.records, "cores", lambda: [1])
    run = record.about("python -m x", 7.0)
    hardware = run["hardware"] | {"processor": "EPYC"}
    line = lambda **x: record.run_line({"run": run | {"hardware": hardware | x}})
    assert line().startswith("1 core of EPYC, shared; ")
    assert line(device="NVIDIA H200").startswith("NVIDIA H200, shared; ")


def test_a_study_of_kept_runs_names_what_made_them(tmp_path):
    """Made on another machine by other code, they stood under that of writing the results."""
    kinds = {"a": ("EPYC", 2, "x"), "b": ("Xeon", 1, "y"), "c": ("EPYC", 2, "x")}
    for name, (processor, cores, commit) in kinds.items():
        (tmp_path / name).mkdir()
        hardware = {"platform": "cpu", "processor": processor, "cores_used": cores, "devices": 1}
        made = json.dumps({"git": commit, "hardware": hardware})
        (tmp_path / name / "environment.json").write_text(made)
    found = record.trained([*tmp_path.iterdir(), tmp_path / "not begun"])
    assert found == ["EPYC, 2 cores, commit x", "Xeon, 1 core, commit y"]
    line = record.run_line({"run": record.about("python -m x", 7.0), "trained": found})
    assert line.endswith(f". Runs were made on {found[0]}; {found[1]}.")


def test_a_readme_with_other_blocks_is_refused():
    text = "<!-- a -->\nold\n<!-- end -->\n"
    assert record.renewed(text, {"a": "new"}) == "<!-- a -->\nnew\n<!-- end -->\n"
    with pytest.raises(ValueError, match=r"expected the blocks \['b'\], got \['a'\]"):
        record.renewed(text, {"b": "new"})


def test_words_of_another_run_are_not_passed_off_as_those_of_a_run_elsewhere(tmp_path):
    """A run of one seed and three steps stood under the answer of three seeds."""
    (tmp_path / "own").mkdir()
    readme = tmp_path / "own/README.md"
    readme.write_text("# Q\n<!-- a -->\nold\n<!-- end -->\n**Yes.**\n")
    for out in (tmp_path, tmp_path / "own"):
        record.write(out, tmp_path / "own", {}, lambda results: {"a": "new"}, {})
    new = "# Q\n<!-- a -->\nnew\n<!-- end -->\n**Yes.**\n"
    assert readme.read_text() == new
    assert (tmp_path / "README.md").read_text() == record.OF_ANOTHER + new


def test_a_full_disk_leaves_the_results_that_were_there_and_says_where(tmp_path):
    """Those of the run before were cut off, by an error that named no file."""
    (tmp_path / "README.md").write_text("# Q\n<!-- a -->\nold\n<!-- end -->\n")
    write = lambda x: record.write(tmp_path, tmp_path, x, lambda results: {"a": "new"}, {})
    write({"x": 1})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(100), pytest.raises(OSError, match=r"results\.json"):
        write({"x": [*range(1000)]})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_runs_from_end_to_end(name, tmp_path, capsys, monkeypatch):
    # most of the time goes into compiling one training run for each number of heads
    some = ("two relations", "joint answer")
    monkeypatch.setattr(training, "CASES", {case: training.CASES[case] for case in some})
    monkeypatch.setattr(heads_command, "Sizes", lambda: SMALL)
    monkeypatch.setattr(pretraining_command, "CELLS", tmp_path / "cells")
    small = functools.partial(pretraining.Settings, variants=("softmax",), width=8, batch_size=4)
    monkeypatch.setattr(pretraining_command, "Settings", small)
    monkeypatch.setattr(lra, "TASKS", {"listops": TINY_LISTOPS})
    monkeypatch.setattr(lra_command, "CELLS", tmp_path / "cells")
    some = functools.partial(lra.Settings, tasks=("listops",), models=("softmax", "local", "gla"))
    monkeypatch.setattr(lra_command, "Settings", some)
    tiny = {"layers": 1, "width": 8, "mlp_width": 8}
    some = {"lengths": (60,), "models": ("softmax", "softmax in blocks", "local")}
    some["fields"] = {"train.batch_size": 1} | {f"model.{k}": x for k, x in tiny.items()}
    some = functools.partial(lra_speed.Settings, **some)
    monkeypatch.setattr(speed_command, "Settings", some)
    monkeypatch.setattr(extrapolation_command, "CELLS", tmp_path / "cells")
    few = {"task.validation": 30, "task.test": 30, "train.batch_size": 4, "model.width": 8}
    some = {"encodings": ("rotary", "alibi"), "changes": overrides(few)}
    some = functools.partial(extrapolation.Settings, **some)
    monkeypatch.setattr(extrapolation_command, "Settings", some)
    monkeypatch.setattr(recall_command, "CELLS", tmp_path / "cells")
    some = functools.partial(recall.Settings, families=("softmax", "hgrn2"), fields=few)
    monkeypatch.setattr(recall_command, "Settings", some)
    monkeypatch.setattr(tasks_command, "WORKDIR", tmp_path)
    few = (("task.validation", 30), ("task.test", 30), ("train.batch_size", 4), ("model.width", 8))
    some = functools.partial(tasks.Settings, configs=("modular", "parity"), fields=few)
    monkeypatch.setattr(
        tasks, "CONFIGS", tasks.CONFIGS | dict.fromkeys(some.keywords["configs"], ("lstm",))
    )
    monkeypatch.setattr(tasks_command, "Settings", some)
    counts = ["--steps=10"] if name == "lra_speed" else ["--seeds=1", "--steps=10"]
    assert COMMANDS[name].main([f"--out={tmp_path}", *counts]) == 0
    assert "README.md" in capsys.readouterr().out
    written = (tmp_path / "README.md").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert record.renewed(written, COMMANDS[name].blocks(results)) == written
    assert list(tmp_path.glob("*.png"))
    assert results["run"]["hardware"]["cores"] > 0
    kept = name in ("pretraining", "lra", "extrapolation", "recall_state", "tasks")
    assert ("Runs were made on " in written) == kept


def overrides(fields):
    return tuple(f"--config.{name}={value}" for name, value in fields.items())


def test_nothing_is_chosen_by_longer_rows():
    for encoding in extrapolation.ENCODINGS:
        experiment = extrapolation.Settings(steps=30).experiment(encoding, seed=2)
        assert (experiment.model.positions, experiment.seed) == (encoding, 2)
        assert experiment.train.steps == experiment.train.eval_every == 30


def test_pairs_of_a_published_order_are_counted():
    scores = {"alibi": 0.4, "t5": 0.6, "rotary": 0.5, "sinusoidal": 0.5}
    found = {name: {"16 tokens": [1.0], "64 tokens": [x, x]} for name, x in scores.items()}
    first, second = extrapolation_tables.published(found).splitlines()
    assert "3 of 6 pairs in this order; but t5 over alibi, rotary over alibi, sin" in first
    assert "4 of 6 pairs in this order; but rotary over alibi, sinusoidal over alibi." in second


def test_a_study_of_runs_that_all_failed_says_why(tmp_path, monkeypatch):
    """Its table ended in the max() of nothing."""

    def fail(*_, **__):
        raise LabError("no device")

    monkeypatch.setattr(recall.train, "run", fail)
    told = rf"^none of the 1 runs in {tmp_path} has a result: LabError: no device$"
    with pytest.raises(LabError, match=told):
        recall.measure(recall.Settings(families=("softmax",)), tmp_path)


@pytest.mark.slow
def test_each_family_has_each_state_once():
    planned = recall.Settings(seeds=2).planned()
    seen = [(recall.family(p), p.experiment.model.head_dim, p.experiment.seed) for p in planned]
    windows = [x for x in seen if x[0] == "window"]
    assert len(windows) == 6
    assert len({*seen}) == len(seen) - 4
    assert {x for x in seen if x[0] == "linear"} == {
        ("linear", size, seed) for size in (8, 16, 32, 64, 128) for seed in (0, 1)
    }
    assert all(p.experiment.task.length == 32 for p in planned)
    assert len({recall.family(p) for p in planned}) == 11


def test_each_config_of_the_tasks_is_run_as_it_stands():
    """One was left out of a table by hand, and the table went stale."""
    settings = tasks.Settings(seeds=1, steps=100)
    planned = {config: settings.planned(config) for config in tasks.CONFIGS}
    assert {len({p.name for p in runs}) for runs in planned.values()} >= {1, 9, 59}
    for runs in planned.values():
        assert all(p.experiment.train.steps <= 100 for p in runs)
    first, *others = tasks.Settings(seeds=3).planned("needle")
    assert first.experiment == read(str(ROOT / "configs/needle.py:softmax"))
    assert [p.experiment.seed for p in (first, *others)] == [0, 1, 2]


def test_readme_has_the_table_of_the_tasks():
    results = json.loads((tasks_command.FOLDER / "results.json").read_text())
    text = (ROOT / "README.md").read_text()
    _, _, after = text.partition("<!-- tasks: of experiments/studies/tasks -->\n")
    assert after.partition("<!-- end -->")[0] == tasks_tables.tasks(results["configs"]) + "\n"


def test_a_model_is_faster_where_middle_halves_of_steps_lie_apart():
    """Reformer was called faster than exact attention, at 1.11 times with quarters beyond it."""
    at = {"exact": (50, 60), "fast": (10, 20), "near": (49, 53), "slow": (70, 80)}
    at = {name: {"low": low, "high": high} for name, (low, high) in at.items()}
    told = speed_tables.ahead(at, ["fast", "near", "slow"], "exact")
    assert told == "fast (within noise, as the middle halves overlap: near)"
    assert speed_tables.ahead(at, ["slow"], "exact") == "none"


def test_a_table_rounds_what_a_study_found_once():
    """221 right of 270 were 81.8%: of 0.8185, not of 0.81852."""
    assert record.spread(record.rounded([221 / 270])) == record.spread([221 / 270]) == "81.9"


def test_a_table_of_tasks_has_the_mean_of_the_seeds_and_their_range():
    models = {"one": {"accuracy": [0.5]}, "two": {"accuracy": [0.7, 0.5]}}
    assert tasks_tables.scores({"models": models}) == "one **50.0**; two **60.0** (50.0 to 70.0)"
    text = tasks_tables.seeds({"task": {"models": models}, "other": {"models": models}})
    assert "several seeds: 2. " in text
    assert "in 0, more than five in 2. " in text
    assert text.endswith("The widest: `task` two by 20.0, `other` two by 20.0.")


def test_how_far_rows_alone_tell_mechanisms_apart_is_that_of_the_data():
    """Of 258 right of 270 it was taken from 95.6%, a number that had been rounded before."""
    models = json.loads((tasks_command.FOLDER / "results.json").read_text())["configs"]["zoo"]
    whole = lambda accuracies: fmean(round(270 * x) for x in accuracies) / 270
    right = {n: whole(row["accuracy"]) for n, row in models["models"].items()}
    error = {n: 100 * (p * (1 - p) / 270) ** 0.5 for n, p in right.items()}
    text = " ".join((ROOT / "configs/zoo.py").read_text().split())
    assert f"error is {min(error.values()):.1f} to {max(error.values()):.1f}" in text
    others = [1.96 * x for n, x in error.items() if n in MECHANISMS or n in ("lstm", "gru")]
    said = (tasks_command.FOLDER / "README.md").read_text()
    assert f"rows alone is {min(others):.1f} to {max(others):.1f} points" in said


def test_the_zoo_lists_the_means_of_its_study():
    models = json.loads((tasks_command.FOLDER / "results.json").read_text())["configs"]["zoo"]
    text = " ".join((ROOT / "configs/zoo.py").read_text().split())
    listed = re.search(r"separated\): (.*?)\. None failed", text)[1]
    said, names = {}, []
    for word in re.split(", | and ", listed):
        name, _, mean = word.partition(" ")
        names.append(name)
        if mean:
            said |= dict.fromkeys(names, mean)
            names = []
    means = {n: f"{100 * fmean(row['accuracy']):.1f}" for n, row in models["models"].items()}
    assert said == means


def test_mistakes_in_the_command_are_named(capsys):
    assert heads_command.main(["--seeds=0", "--steps=0"]) == 2
    assert conversion_command.main(["--ot=x"]) == 2
    errors = capsys.readouterr().err
    assert "--seeds: expected at least 1" in errors
    assert "did you mean '--out'?" in errors


@pytest.mark.parametrize("name", ["README.md", "results.json"])
def test_a_study_writes_over_no_results_but_its_own(name, tmp_path, capsys, monkeypatch):
    """`--out=` of an unset variable, or the folder of a comparison: its results were lost."""
    (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(conversion_command, "measure", lambda settings: pytest.fail("it ran"))
    for out in ("", str(tmp_path)):
        assert conversion_command.main([f"--out={out}"]) == 2
        assert f"holds {name} of something else; name another" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "{}"
    for study in (conversion_command, heads_command, lra_command):
        assert record.made(study.FOLDER, study.FOLDER) == study.FOLDER
    with pytest.raises(ConfigError, match=r"README\.md and results\.json of something else"):
        record.made(lra_command.FOLDER, heads_command.FOLDER)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_study_has_the_flags_that_its_usage_names(name, capsys):
    """Three took --seeds or --steps, said they were of training, and did not look at them."""
    assert WRITTEN[name].main(["--help"]) == 0
    assert WRITTEN[name].main(["--seeds=0", "--steps=0", "--out="]) == 2
    shown, errors = capsys.readouterr()
    for flag in ("seeds", "steps"):
        has = f"[--{flag}=" in shown.splitlines()[0]
        assert (f"\n--{flag}: " in shown) == has
        assert (f"--{flag}=0: unknown flag" in errors) != has


@pytest.mark.parametrize(("name", "kept"), [("lra", "CELLS"), ("tasks", "WORKDIR")])
def test_what_failed_is_run_again_when_asked(name, kept, tmp_path, monkeypatch, capsys):
    """A run that had failed stayed so for good: nothing told how to try it again."""
    failed = tmp_path / "text/cells/softmax-0-0123456789" / FAILURE
    disk.make(failed.parent)
    monkeypatch.setattr(WRITTEN[name], kept, tmp_path)

    def stop(*_):
        raise LabError("stopped here" if failed.exists() else "would run it")

    monkeypatch.setattr(WRITTEN[name], "measure", stop)
    for flags, told in (([], "stopped here"), (["--retry_failed"], "would run it")):
        disk.write_json(failed, {"error": "out of memory"})
        assert WRITTEN[name].main([f"--out={tmp_path}/out", *flags]) == 1
        assert told in capsys.readouterr().err


def test_a_reader_that_leaves_ends_no_study(tmp_path, monkeypatch):
    """`| head -1` ended hours of it as a broken pipe in the folder, with nothing written."""
    name = uptraining.name_of
    kinds = [name(4), *(name(n, way) for n in (2, 1) for way in uptraining.WAYS)]
    monkeypatch.setattr(uptraining, "converted", lambda base, s, seed: [(n, base) for n in kinds])
    monkeypatch.setattr(uptraining, "train", lambda *_: None)
    monkeypatch.setattr(uptraining, "accuracy", lambda model: 0.5)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert conversion_command.main([f"--out={tmp_path}", "--seeds=1"]) == 0
        monkeypatch.undo()
    assert (tmp_path / "results.json").exists()


def test_every_study_has_its_command():
    studies = record.Path(record.__file__).parent
    # these have files of tests of their own
    others = {"approximation", "complexity"}
    assert {p.parent.name for p in studies.glob("*/__main__.py")} == {*WRITTEN, *others}
    assert all(m.__doc__.strip().endswith("?") for m in (heads, conversion))
