"""Sizes are solved, budgets are kept, settings are chosen on validation; all of it is said."""

import json
import math
import re

import jax
import pytest
from flax import nnx
from tiny_experiment import TINY, tiny, write_config

import experiments.alike
from attn.nn.head import Head
from experiments import compare, disk, dry_run, quantities, records
from experiments.alike import alike, solve
from experiments.cells import Cells, begin
from experiments.config_file import read_comparison
from experiments.errors import ConfigError, LabError, RunDirectoryError
from experiments.fairness import Fairness, Range, fairness
from experiments.search import _end, chosen, combinations, search
from experiments.sweep import Planned, plan
from experiments.validation import from_dict

KEY = jax.random.key(0)
LAST = "optimizer.final_learning_rate"
SWEEP = """
def sweep():
    for name in ("softmax", "linear"):
        yield {"model.attention": {"name": name}}

"""


def planned(*names, **sections):
    return [Planned(name, tiny(model={"attention": {"name": name}}, **sections)) for name in names]


def test_a_ratio_is_solved_for_in_few_looks():
    looks = []

    def ratio(n):
        looks.append(n)
        return (n * n + 3 * n + 40) / (777 * 777)

    value, near = solve(ratio)
    assert abs(near - 1) <= 0.002
    assert value in range(770, 780)
    assert len(looks) < 15


@pytest.mark.parametrize(("ratio", "value"), [(lambda n: 5.0 + n, 1), (lambda n: n / 3, 3)])
def test_the_ends_of_what_can_be_solved(ratio, value):
    assert solve(ratio)[0] == value


def test_a_model_without_an_mlp_gets_none_where_none_matches(tmp_path):
    model = lambda name: {"attention": {"name": name}, "mlp_width": 0}
    sweep = [Planned(name, tiny(model=model(name))) for name in ("softmax", "linear", "gla")]
    _, same, larger = alike(sweep, Fairness(match="params"), tmp_path)
    assert same.notes["matched"] == "mlp_width=0, +0.0%"
    assert larger.experiment.model.mlp_width == 0


def test_parameters_are_matched_within_two_per_cent(tmp_path):
    model = lambda name: {"attention": {"name": name}, "mlp_width": 64}
    sweep = [Planned(name, tiny(model=model(name))) for name in ("softmax", "lstm")]
    found = alike(sweep, Fairness(match="params"), tmp_path)
    want, got = (quantities.params(p.experiment) for p in found)
    assert found[0].experiment == sweep[0].experiment
    assert found[1].experiment != sweep[1].experiment
    assert abs(got / want - 1) <= 0.02
    note = found[1].notes["matched"]
    assert note == f"mlp_width={found[1].experiment.model.mlp_width}, {got / want - 1:+.1%}"
    # solved once
    assert len(json.loads((tmp_path / "alike.json").read_text())) == 2


@pytest.mark.parametrize("head_width", [None, 5])
def test_what_is_solved_leaves_the_head_as_the_first_has_it(head_width, tmp_path):
    """An LSTM of as many parameters as softmax had a head of three units, and stayed at chance."""
    model = lambda name: {"attention": {"name": name}, "mlp_width": 64, "head_width": head_width}
    digits = lambda name: from_dict(TINY | {"task": {"name": "digits"}, "model": model(name)})
    sweep = [Planned(name, digits(name)) for name in ("softmax", "lstm")]
    found = [p.experiment for p in alike(sweep, Fairness(match="params"), tmp_path)]
    assert found[1].model.mlp_width < 40
    make = lambda e: e.model.encoder(**e.posed.sizes, head=e.posed.head)
    heads = [jax.eval_shape(lambda: nnx.state(Head(make(e), key=KEY))) for e in found]
    assert heads[0] == heads[1]
    assert heads[0]["linears"][0]["bias"].shape == (head_width or 64,)


def test_a_matched_time_is_measured_once_more(tmp_path, monkeypatch, capsys):
    """The nearest of several noisy ones was told."""
    looks = []
    monkeypatch.setattr(quantities, "Step", lambda experiment: experiment.model.mlp_width)

    def milliseconds(mine, its):
        noise = 1.25 if mine in looks else 1.0
        looks.append(mine)
        return [noise * mine, its]

    monkeypatch.setattr(quantities, "milliseconds", milliseconds)
    sweep = planned("softmax", "linear")
    found = alike(sweep, Fairness(match="step_time"), tmp_path)
    width = sweep[0].experiment.model.mlp_width
    assert found[1].experiment.model.mlp_width == width
    assert found[1].notes["matched"] == f"mlp_width={width}, +25.0% (as near as it gets)"
    assert looks.count(width) == 2
    # nothing was said for minutes
    assert capsys.readouterr().err == "timing steps of softmax\ntiming steps of linear\n"


def test_a_match_that_is_missed_is_told_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    # only a column of the table told it, after all was trained
    monkeypatch.setattr(dry_run, "estimate", lambda runs: "table")
    model = lambda name, width: {"attention": {"name": name}, "width": width, "mlp_width": 8}
    sweep = [Planned("softmax", tiny(model=model("softmax", 8)))]
    sweep += [Planned("wide", tiny(model=model("softmax", 64)))]  # too large without any MLP
    sweep += [Planned("linear", tiny(model=model("linear", 8)))]
    rules = Fairness(match="params")

    def stop(*_, **__):
        raise KeyboardInterrupt

    def lines():
        return [x for x in capsys.readouterr().out.splitlines() if "not matched" in x]

    dry_run.dry_run(sweep, rules, tmp_path)
    (told,) = lines()
    assert re.fullmatch(r"wide: params not matched: .*% \(as near as it gets\)", told)
    with pytest.raises(KeyboardInterrupt):
        compare.compare(sweep, tmp_path, title="t", run=stop, rules=rules)
    assert lines() == [told]


@pytest.mark.parametrize("measure", [quantities.flops, lambda x: quantities.Step(x).program])
def test_what_a_model_refuses_is_named_before_it_is_trained_too(measure):
    """--dry_run, matches and budgets ended in a traceback where `train` names it."""
    task = {"name": "reverse", "lengths": (4, 6), "validation": 20, "test": 20}
    model = {"layers": 1, "width": 8, "heads": 2, "attention": {"name": "linformer"}}
    with pytest.raises(ConfigError, match="linformer cannot honour Causal"):
        measure(from_dict({**TINY, "task": task, "model": model}))
    with pytest.raises(ConfigError, match="family: expected 'transformer' with a task of head"):
        quantities.params(tiny(model={"family": "luong"}))


@pytest.mark.parametrize("rules", [Fairness(match="step_time"), Fairness(budget={"seconds": 0.5})])
def test_steps_are_timed_where_they_are_trained(rules, tmp_path, monkeypatch):
    """With --processes=2 they were timed on all cores, and trained on half of them."""
    there = []

    def launch(work, arguments, most):
        there.append(most)
        work(*arguments)
        there.pop()

    def milliseconds(*widths):
        assert there == [1]
        return [float(n) for n in widths]

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(quantities, "Step", lambda experiment: experiment.model.mlp_width)
    monkeypatch.setattr(quantities, "milliseconds", milliseconds)
    variants = planned("softmax", "linear", train={"steps": 1})
    # of the second seed nothing is timed, and it was told that what does so had been killed
    sweep = [p.having({"seed": seed}) for p in variants for seed in range(2)]
    for _ in range(2):  # the second time nothing is timed
        there.clear()
        with pytest.raises(KeyboardInterrupt):
            compare.compare(sweep, tmp_path, title="t", run=stop, rules=rules, launch=launch)
        assert there == [4]  # runs are left
        monkeypatch.delattr(quantities, "milliseconds", raising=False)


def test_steps_are_not_timed_on_other_cores_where_their_process_was_killed(tmp_path):
    sweep, rules = planned("softmax", "linear", train={"steps": 1}), Fairness(match="step_time")
    killed = lambda work, arguments, most: None
    with pytest.raises(LabError, match="what timed the steps was killed"):
        compare.compare(sweep, tmp_path, title="t", run=None, rules=rules, launch=killed)
    assert not (tmp_path / "sweep.json").exists()  # the directory is nobody's


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"fields"', '"field"'),
        # a number of steps was obeyed, and the note beside it told another
        lambda text: text.replace('"train.steps": 7', '"train.steps": 9'),
        lambda text: text.replace('"steps": "7"', '"steps": "9"'),
        # what was solved for other rules
        lambda text: text.replace("'steps': 7", "'steps': 8"),
        lambda text: json.dumps(dict.fromkeys(json.loads(text), 7)),
        lambda text: text[:40],
    ],
)
def test_an_edited_file_of_solved_sizes_is_named(edit, tmp_path):
    alike(planned("softmax"), Fairness(budget={"steps": 7}), tmp_path)
    path = tmp_path / "alike.json"
    edited = edit(path.read_text())
    assert edited != path.read_text()
    path.write_text(edited)
    for steps in (7, 8):
        with pytest.raises(RunDirectoryError, match=r"alike.json is not as .*\n  .*remove it"):
            alike(planned("softmax"), Fairness(budget={"steps": steps}), tmp_path)
    path.unlink()
    (found,) = alike(planned("softmax"), Fairness(budget={"steps": 7}), tmp_path)
    assert found.experiment.train.steps == 7


def test_why_solved_sizes_cannot_be_read_is_said(tmp_path):
    (tmp_path / "alike.json").mkdir()
    with pytest.raises(RunDirectoryError, match=r"as it was written: cannot be read: .*directory"):
        alike(planned("softmax"), Fairness(budget={"steps": 7}), tmp_path)


@pytest.mark.parametrize("name", ["model.width", "model.head_dim"])
def test_heads_that_are_turned_stay_even(name, tmp_path):
    turned = lambda heads: tiny(model={"positions": "rotary", "heads": heads, "width": 32})
    sweep = [Planned("two", turned(2)), Planned("one", turned(1), match=name)]
    found = alike(sweep, Fairness(match="params"), tmp_path)[1].experiment
    assert (found.model.head_dim or found.model.width) % 2 == 0
    assert abs(quantities.params(found) / quantities.params(sweep[0].experiment) - 1) <= 0.1


def test_state_bytes_are_matched_by_the_field_a_run_names(tmp_path):
    window = tiny(model={"attention": {"name": "window"}})
    sweep = [*planned("linear"), Planned("window", window, match="model.attention.left")]
    found = alike(sweep, Fairness(match="state_bytes"), tmp_path)
    want, got = (quantities.state_bytes(p.experiment) for p in found)
    assert abs(got / want - 1) < 0.5  # a window is whole tokens: as near as it gets, and said so
    assert "left=" in found[1].notes["matched"]


def test_what_has_no_state_is_named(tmp_path):
    model = {"attention": {"name": "linformer", "features": 4}, "causal": False}
    sweep = [*planned("linear"), Planned("linformer", tiny(model=model))]
    with pytest.raises(ConfigError, match=r"linformer has no state_bytes .*: it does not decode"):
        alike(sweep, Fairness(match="state_bytes"), tmp_path)
    bigbird = tiny(model={"attention": {"name": "bigbird"}, "causal": False})
    with pytest.raises(ConfigError, match=r"draws its pattern .* as BigBird\(length=\d+\)"):
        alike(
            [*planned("linear"), Planned("bigbird", bigbird)],
            Fairness(match="state_bytes"),
            tmp_path,
        )


def test_a_field_that_cannot_be_solved_is_said_to_be_matchs(tmp_path):
    """An LSTM was told to leave out a head_dim that nobody had given it."""
    told = r"1 mistake in lstm .*match solves model.head_dim unless .* as 'match'"
    with pytest.raises(ConfigError, match=told):
        alike(planned("softmax", "lstm"), Fairness(match="state_bytes"), tmp_path)


def test_a_width_that_a_mechanism_refuses_is_one_mistake(tmp_path):
    """Of `latent` with decoupled channels a traceback was shown."""
    latent = tiny(model={"attention": {"name": "latent", "decoupled": 2}})
    with pytest.raises(ConfigError, match=r"match solves model.head_dim .*\n  decoupled: expected"):
        alike(
            [*planned("softmax"), Planned("latent", latent)],
            Fairness(match="state_bytes"),
            tmp_path,
        )


@pytest.mark.parametrize("name", ["optimizer.learning_rate", "model.attention.features"])
def test_a_field_on_which_nothing_depends_is_not_solved(name, tmp_path):
    """A learning rate of 1, and a performer of one feature, were matched to within 0.0%."""
    model = {"attention": {"name": "performer", "features": 16}}
    sweep = [*planned("softmax"), Planned("performer", tiny(model=model), match=name)]
    told = rf"performer has no params to match by {name}: it is the same with any; name another"
    with pytest.raises(ConfigError, match=told):
        alike(sweep, Fairness(match="params"), tmp_path)


def test_widths_that_are_solved_are_of_whole_parts(tmp_path):
    sweep = planned("softmax", "differential")
    found = [p.experiment for p in alike(sweep, Fairness(match="state_bytes"), tmp_path)]
    assert quantities.state_bytes(found[0]) == quantities.state_bytes(found[1])
    turned = {"attention": {"name": "differential"}, "positions": "rotary", "head_dim": 4}
    sweep = [*planned("softmax"), Planned("turned", tiny(model=turned))]
    (_, found) = alike(sweep, Fairness(match="state_bytes"), tmp_path)
    assert found.experiment.model.head_dim % 4 == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steps", "tokens", "flops", "seconds"])
def test_a_budget_pays_for_steps(kind, tmp_path):
    (one,) = planned("softmax")
    amount = {"steps": 7, "tokens": 8 * 12 * 7, "flops": 7.5 * quantities.flops(one.experiment)}
    (found,) = alike([one], Fairness(budget={kind: amount.get(kind, 0.5)}), tmp_path)
    if kind != "seconds":
        assert found.experiment.train.steps == 7
    assert found.notes == {"steps": f"{found.experiment.train.steps:,}"}
    again = alike([one], Fairness(budget={kind: amount.get(kind, 0.5)}), tmp_path)
    assert again[0].experiment == found.experiment  # a time is not measured twice


def test_tokens_of_targets_are_paid_for():
    """A budget of tokens paid for the source's alone, where a decoder reads as many of the target:
    sequence tasks trained for about twice of it."""
    task = {"name": "reverse", "lengths": (8, 12), "validation": 20, "test": 20}
    experiment = from_dict({**TINY, "task": task, "model": {"layers": 1, "width": 8, "heads": 2}})
    assert quantities.tokens(experiment) == 8 * (12 + 13)  # and the end


@pytest.mark.parametrize(("kind", "steps"), [("flops", 20), ("tokens", 20), ("steps", 23)])
def test_a_budget_pays_for_whole_calls(kind, steps, tmp_path):
    """What was left of one made every call of that variant a single step: a slower train step by
    its number of steps, and no property of its attention."""
    train = {"steps": 8, "eval_every": 4, "save_every": 8, "steps_per_call": 4}
    (one,) = planned("softmax", train=train)
    of_one = {"steps": 1, "tokens": 8 * 12, "flops": quantities.flops(one.experiment)}[kind]
    (found,) = alike([one], Fairness(budget={kind: 23.5 * of_one}), tmp_path)
    assert found.experiment.train.steps == steps
    assert found.notes == {"steps": f"{steps}"}
    (few,) = alike([one], Fairness(budget={kind: 3.5 * of_one}), tmp_path)
    assert few.experiment.train.steps == 3


def test_a_budget_of_less_than_a_step_is_told(tmp_path):
    """One was made without a remark."""
    (found,) = alike(planned("softmax"), Fairness(budget={"tokens": 8 * 12 - 1}), tmp_path)
    assert found.experiment.train.steps == 1
    assert found.notes == {"steps": "1 (more than the budget)"}


@pytest.mark.parametrize("match", ["none", "step_time"])
def test_seconds_pay_for_steps_that_were_timed_as_they_are_trained(match, tmp_path, monkeypatch):
    """Of 37 steps, which the budget replaces, a call makes one: a step was timed without others."""
    timed = []

    def step(experiment):
        timed.append(experiment.train.together)
        return experiment.model.mlp_width

    monkeypatch.setattr(quantities, "Step", step)
    monkeypatch.setattr(quantities, "milliseconds", lambda *widths: [float(n) for n in widths])
    train = {"steps": 37, "eval_every": 8, "save_every": 16, "steps_per_call": 4}
    sweep = planned("softmax", "linear", train=train)
    found = alike(sweep, Fairness(match=match, budget={"seconds": 1.0}), tmp_path)
    assert {p.experiment.train.together for p in found} == {4} == {*timed}


def test_seconds_pay_for_steps_that_were_timed_in_turns(tmp_path, monkeypatch):
    """Each variant was timed alone, so that what else ran meanwhile settled how long it trained."""
    slowed = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(quantities, "Step", lambda experiment: experiment.model.mlp_width)

    def milliseconds(*steps):
        by = next(slowed)
        return [by * n for n in steps]

    monkeypatch.setattr(quantities, "milliseconds", milliseconds)
    width = lambda n: planned("softmax")[0].having({"model.mlp_width": n}).experiment
    sweep = [Planned(f"width {n}", width(n)) for n in (10, 20, 5)]
    found = alike(sweep, Fairness(budget={"seconds": 1.0}), tmp_path)
    assert [p.experiment.train.steps for p in found] == [100, 50, 200]
    monkeypatch.delattr(quantities, "milliseconds")
    again = alike(sweep, Fairness(budget={"seconds": 1.0}), tmp_path)
    assert [p.experiment for p in again] == [p.experiment for p in found]


def test_what_takes_as_long_as_a_step_beyond_the_budget_is_beyond_it_too(tmp_path, monkeypatch):
    """Of the first alone it was told."""
    monkeypatch.setattr(quantities, "Step", lambda experiment: experiment.model.mlp_width)
    monkeypatch.setattr(quantities, "milliseconds", lambda *widths: [float(n) for n in widths])
    width = lambda n: planned("softmax")[0].having({"model.mlp_width": n}).experiment
    sweep = [Planned(f"width {n}", width(n)) for n in (20, 10)]
    found = alike(sweep, Fairness(budget={"seconds": 0.015}), tmp_path)
    assert [p.notes["steps"] for p in found] == [f"{n} (more than the budget)" for n in (1, 2)]


@pytest.mark.parametrize(
    ("value", "listed", "told"),
    [
        (3, [1, 3, 2], " (largest tried)"),
        (0.1, (0.3, 0.1, 0.2), " (smallest tried)"),
        (2, [1, 2, 3], ""),
        (2, [1, 2], " (largest tried)"),
        (1.0, [1.0, 2], " (smallest tried)"),
        ("relu", ["elu", "relu", "tanh"], ""),
        (True, [True, False, True], ""),
        (0.14, Range(low=0.1, high=1.0), " (near the smallest allowed)"),
        (0.16, Range(low=0.1, high=1.0), ""),
        (0.16, Range(low=0.1, high=1.0, log=True), ""),
        (0.85, Range(low=0.1, high=1.0, log=True), ""),
        (0.9, Range(low=0.1, high=1.0, log=True), " (near the largest allowed)"),
        (6, Range(low=4, high=6), " (near the largest allowed)"),
        (5, Range(low=4, high=6), ""),
    ],
)
def test_a_best_value_at_the_end_of_those_tried_is_told(value, listed, told):
    assert _end(value, listed) == told


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ({"match": "params"}, "model.layers"),
        ({"match": "flops"}, "train.batch_size"),
        ({"budget": {"tokens": 1e6}}, "train.batch_size"),
        ({"budget": {"flops": 1e9}}, "model.width"),
        ({"budget": {"steps": 9}}, "train.steps"),
        ({}, "seed"),
        ({}, "task.name"),
        ({}, "task.length"),
        ({}, "objective"),
        ({}, "mask_rate"),
    ],
)
def test_what_was_settled_is_not_searched(rules, name):
    with pytest.raises(ValueError, match=rf"search: expected .*\b{name}\b"):
        Fairness(search={name: [1, 2]}, **rules)
    Fairness(search={"optimizer.learning_rate": [0.1, 0.2], "model.dropout": [0.0, 0.1]}, **rules)
    Fairness(search={"train.batch_size": [1, 2]}, budget={"steps": 9})


def test_work_that_cannot_be_counted_is_neither_matched_nor_a_budget(tmp_path):
    one = lambda name: tiny(model={"attention": {"name": name}, "causal": False})
    sweep = [Planned(name, one(name)) for name in ("softmax", "fnet")]
    for rules in (Fairness(match="flops"), Fairness(budget={"flops": 1e9})):
        with pytest.raises(ConfigError, match="the work of fft cannot be counted"):
            alike(sweep, rules, tmp_path)


def test_search_tries_each_combination_and_takes_the_best(tmp_path):
    rules = Fairness(search={"optimizer.learning_rate": [0.1, 0.2], "train.batch_size": [4, 8]})
    sweep = [p.having({"seed": s}) for p in planned("softmax", "linear") for s in (0, 1)]
    tried = combinations(sweep, rules)
    assert len(tried) == 8
    assert {t.experiment.seed for t in tried} == {10**6}
    cells = Cells(tmp_path, tuple(tried))
    for trial in tried:
        e = trial.experiment
        good = {"softmax": (0.2, 4), "linear": (0.1, 8)}[trial.variant]
        accuracy = 0.9 if (e.optimizer.learning_rate, e.train.batch_size) == good else 0.4
        # the test says the opposite: it must not be looked at
        result = {"validation": {"accuracy": accuracy}, "test": {"accuracy": 1 - accuracy}}
        cells.folder(trial).mkdir(parents=True)
        result |= {"parameters": 1, "steps_per_second": 1.0}
        (cells.folder(trial) / "result.json").write_text(
            json.dumps(records.sealed(result, trial.config))
        )
    found = chosen(sweep, cells, rules)
    rates = [(p.experiment.optimizer.learning_rate, p.experiment.train.batch_size) for p in found]
    assert rates == [(0.2, 4)] * 2 + [(0.1, 8)] * 2
    assert found[0].notes["searched"] == (
        "learning_rate=0.2 (largest tried), batch_size=4 (smallest tried), best of 4"
    )
    assert [p.experiment.seed for p in found] == [0, 1, 0, 1]  # none of them won the search


def test_a_mechanism_that_was_chosen_is_told_by_its_name(tmp_path):
    """All fields of its record stood in the table."""
    rules = Fairness(search={"model.attention": ["softmax", "linear"]})
    cells = Cells(tmp_path, tuple(combinations(planned("softmax"), rules)))
    for trial, accuracy in zip(cells.planned, (0.4, 0.9), strict=True):
        scores = {"validation": {"accuracy": accuracy}, "test": {"accuracy": 0.5}}
        result = records.sealed(scores | {"parameters": 1, "steps_per_second": 1.0}, trial.config)
        disk.make(cells.folder(trial))
        disk.write_json(cells.folder(trial) / "result.json", result)
    (found,) = chosen(planned("softmax"), cells, rules)
    assert found.notes["searched"] == "attention=linear, best of 2"


def test_a_dry_run_counts_the_other_seeds_of_what_is_searched(tmp_path, monkeypatch, capsys):
    counted = []
    monkeypatch.setattr(dry_run, "estimate", lambda runs: counted.append([*runs]) or "table")
    rules = Fairness(search={"optimizer.learning_rate": [0.1, 0.2]})
    sweep = [p.having({"seed": s}) for p in planned("softmax", "linear") for s in (0, 1, 2)]
    dry_run.dry_run(sweep, rules, tmp_path)
    assert len(counted.pop()) == 4 + 6
    assert "then 6 with what was best" in capsys.readouterr().out
    end(tmp_path, combinations(sweep, rules), lambda e: e.optimizer.learning_rate)
    dry_run.dry_run(sweep, rules, tmp_path)
    left = [(p.experiment.seed, p.experiment.optimizer.learning_rate) for p in counted.pop()]
    assert left == [(0, 0.2), (1, 0.2), (2, 0.2)] * 2
    told = capsys.readouterr().out
    assert (told.count("to run"), told.count("ended")) == (6, 4)
    end(tmp_path, chosen(sweep, Cells(tmp_path, tuple(combinations(sweep, rules))), rules))
    dry_run.dry_run(sweep, rules, tmp_path)
    assert not counted


def test_a_dry_run_counts_no_finished_run_while_another_variant_is_searched(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(dry_run, "estimate", lambda runs: counted.extend(runs) or "table")
    rules = Fairness(search={"optimizer.learning_rate": [0.1, 0.2]})
    sweep = planned("softmax", "linear")
    tried = combinations(sweep[:1], rules)
    end(tmp_path, tried)
    end(tmp_path, chosen(sweep[:1], Cells(tmp_path, tuple(tried)), rules))
    dry_run.dry_run(sweep, rules, tmp_path)
    assert [p.variant for p in counted] == ["linear"] * 3  # two trials and a run; softmax was there


def test_a_dry_run_counts_what_is_left_of_drawn_trials_and_their_runs(
    tmp_path, monkeypatch, capsys
):
    """Runs were listed in folders of the settings before the search, and counted when all had
    ended."""
    pytest.importorskip("optuna", reason="the extra [search]")
    counted = []
    monkeypatch.setattr(dry_run, "estimate", lambda runs: counted.append([*runs]) or "table")
    rules = Fairness(search={"optimizer.learning_rate": Range(low=0.1, high=1.0)}, trials=2)
    sweep = [p.having({"seed": s}) for p in planned("softmax") for s in (0, 1)]
    dry_run.dry_run(sweep, rules, tmp_path)
    assert not [*tmp_path.iterdir()]
    assert capsys.readouterr().out.splitlines() == [
        "first 2 trials of each variant, which optuna draws, not counted here",
        "then 2 with what was best on validation",
        "table",
    ]
    assert counted.pop() == sweep
    tried = search(sweep, rules, tmp_path, lambda cells: not end(tmp_path, cells.planned))
    done, left = chosen(sweep, tried, rules)
    end(tmp_path, [done])
    files = lambda: {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    before = files()
    dry_run.dry_run(sweep, rules, tmp_path)
    assert [p.name for p in counted.pop()] == [left.name]
    cells = tmp_path / "cells"
    told = [f"ended  {cells / done.name}", f"to run  {cells / left.name}", "table"]
    assert capsys.readouterr().out.splitlines() == told
    assert files() == before
    end(tmp_path, [left])
    dry_run.dry_run(sweep, rules, tmp_path)
    assert not counted


def test_a_dry_run_tells_what_failed_and_counts_it_when_it_is_tried_again(
    tmp_path, monkeypatch, capsys
):
    counted = []
    monkeypatch.setattr(dry_run, "estimate", lambda runs: counted.append([*runs]) or "table")
    sweep = planned("softmax", "linear")
    end(tmp_path, sweep[:1])
    failure = tmp_path / "cells" / sweep[1].name / "failure.json"
    failure.parent.mkdir()
    failure.write_text('{"error": "no"}')
    said = lambda: [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    dry_run.dry_run(sweep, Fairness(), tmp_path)
    assert (said(), counted) == (["ended", "failed"], [])
    dry_run.dry_run(sweep, Fairness(), tmp_path, retry_failed=True)
    assert said() == ["ended", "to", "table"]
    assert [p.name for p in counted.pop()] == [sweep[1].name]
    assert failure.exists()


def test_a_dry_run_makes_nothing_and_refuses_what_the_run_would(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "estimate", lambda runs: "table")
    tokens, solved = Fairness(budget={"tokens": 1e4}), tmp_path / "there"
    sweep, files = planned("softmax", "linear"), lambda: sorted(tmp_path.rglob("*"))
    begin(solved, sweep, tokens)
    made = alike(sweep, tokens, solved)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    before = files()
    dry_run.dry_run(sweep, tokens, tmp_path / "new")
    with pytest.raises(RunDirectoryError, match="single training run"):
        dry_run.dry_run(sweep, tokens, tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="holds another comparison"):
        dry_run.dry_run(sweep[:1], tokens, solved)
    starting = [p.having({"init_from": str(tmp_path / "none")}) for p in sweep]
    with pytest.raises(ConfigError, match=r"init_from=.*there is no such folder"):
        dry_run.dry_run(starting, Fairness(), tmp_path / "new")  # it was estimated
    # what was solved there is not solved again
    monkeypatch.delattr(experiments.alike, "_fields")
    listed = []
    monkeypatch.setattr(dry_run, "_list", lambda cells, *_: listed.extend(cells.planned))
    dry_run.dry_run(sweep, tokens, solved)
    assert [p.name for p in listed] == [p.name for p in made]
    assert files() == before


def end(workdir, runs, accuracy=lambda e: 0.5):
    """Leaves a result of each that has none."""
    cells = Cells(workdir, tuple(runs))
    for p in cells.unfinished():
        scores = {"accuracy": accuracy(p.experiment)}
        result = {"validation": scores, "test": scores, "parameters": 1, "steps_per_second": 1.0}
        cells.folder(p).mkdir(parents=True)
        (cells.folder(p) / "result.json").write_text(json.dumps(records.sealed(result, p.config)))


def test_a_config_file_says_what_is_fair(tmp_path):
    rules = "match = 'params'\nbudget = {'tokens': 1e6}\nsearch = {'optimizer.b1': [0.8, 0.9]}\n"
    path = str(write_config(tmp_path / "c.py", SWEEP + rules))
    sweep, found = read_comparison(path)
    assert found == Fairness(
        match="params", budget={"tokens": 1e6}, search={"optimizer.b1": [0.8, 0.9]}
    )
    assert [p.variant for p in plan(sweep)] == ["softmax", "linear"]


def test_none_is_searched_where_a_field_takes_it():
    """Whether to clip at all could not be searched."""
    rules = fairness({"search": {"optimizer.clip_norm": [None, 0.5]}}, "c.py")
    assert rules.told == "Made alike: optimizer.clip_norm searched among None, 0.5."
    found = combinations(planned("softmax"), rules)
    assert [p.experiment.optimizer.clip_norm for p in found] == [None, 0.5]
    assert [p.notes["trial"] for p in found] == ["clip_norm=None", "clip_norm=0.5"]
    assert _end(None, [None, 0.5]) == ""
    with pytest.raises(ConfigError, match=r"optimizer\.b1: .* got None"):
        combinations(planned("softmax"), fairness({"search": {"optimizer.b1": [None, 0.5]}}, "c"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"match": "parms"}, "match: should be .*did you mean 'params'"),
        ({"budget": {"tokns": 1.0}}, "^1 mistake in c.py:\n  budget.tokns: should be steps or"),
        ({"budget": {"tokens": -1.0}}, "budget.tokens: .*greater than 0"),
        ({"budget": {"tokens": 1.0, "steps": 2.0}}, "budget: .*at most 1"),
        ({"search": {"optimizer.b1": [0.9]}}, "search.optimizer.b1: .*at least 2"),
        (
            {"search": {"optimizer.b1": [0.9, [1]]}},
            r"^1 mistake .*\n.*b1.1: expected a .* None, got \[1\]",
        ),
        (
            {"search": {"optimizer.b1": [0.9, math.nan]}},
            r"^1 mistake .*\n.*expected a .*got nan",
        ),
    ],
)
def test_mistakes_are_named(names, message):
    with pytest.raises(ConfigError, match=message):
        fairness(names, "c.py")


def test_what_is_searched_is_not_swept(tmp_path):
    rules = "search = {'model.attention.chunk': [8, 16]}\n"
    path = str(write_config(tmp_path / "c.py", SWEEP + rules))
    with pytest.raises(ConfigError, match=r"sweep\(\) sets model.attention"):
        read_comparison(path)


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("budget = {'steps': 8}", "train.steps=2", "--config.train.steps: the budget sets"),
        ("search = {'optimizer.learning_rate': [0.1, 0.2]}", "optimizer.learning_rate=3", "tries"),
        ("budget = {'steps': 8}\nsweep = lambda: [{'train.steps': 2}]", "", "budget sets train"),
        (
            "match = 'params'\nsweep = lambda: [{}, {'model.mlp_width': 2}]",
            "",
            "match solves model.mlp_width",
        ),
        (
            "match = 'params'\nfield = {'match': 'model.attention.left'}\n"
            "sweep = lambda: [{}, {'model.attention': 'window', **field}]",
            "",
            r"model.attention: match solves .*\.left; .* or give model.attention.name alone",
        ),
        ("sweep = lambda: [{'match': 'model.width'}]", "", "no match of the file"),
        ("sweep = lambda: [{'match': 5}]", "", "match: expected a text of one line, got 5"),
        # which cleared a terminal's screen, and broke a row of table.md in two
        (r"sweep = lambda: [{'name': 'a\x1b[2J'}]", "", r"name: .* of one line, got 'a"),
        (r"sweep = lambda: [{'name': 'a\rb'}]", "", r"name: expected a text of one line, got 'a"),
        ("sweep = lambda: [{'name': ['a']}]", "", "name: expected a text"),
        ("sweep = lambda: [{3: 'a'}]", "", "expected names of fields, got 3"),
        (
            "sweep = lambda: [{'model.attention.name': 'linear', 'model.attention': 'softmax'}]",
            "",
            "model.attention: .* would be lost",
        ),
        # each mechanism was tried twice, with its own number of features
        (
            "sweep = lambda: [{'seed': 0}]\nsearch = {'model.attention.features': [8, 16],"
            " 'model.attention': ['performer', 'rfa']}",
            "",
            "search: model.attention: model.attention.features comes before it",
        ),
    ],
)
def test_what_one_place_settles_no_other_sets(text, override, message, tmp_path):
    path = str(write_config(tmp_path / "c.py", f"{SWEEP}\n{text}\n"))
    overrides = [f"--config.{override}"] if override else []
    with pytest.raises(ConfigError, match=message):
        read_comparison(path, overrides)


def test_two_variants_of_one_name_are_refused(tmp_path):
    layers = "[{'name': 'softmax layers=2', 'model.width': 16}, {'model.layers': 2}, {}]"
    named = layers.replace("{'model.layers'", "{'name': 'softmax', 'model.layers'")
    named = named.replace("{}]", "{'name': 'softmax', 'model.layers': 1}]")
    path = write_config(tmp_path / "c.py", f"sweep = lambda: {named}\n")
    with pytest.raises(ConfigError, match="different variants called 'softmax layers=2'"):
        plan(read_comparison(str(path))[0])


def test_a_value_that_no_run_can_have_is_refused(tmp_path):
    rules = Fairness(search={"optimizer.learning_rate": [0.1, -0.1]})
    with pytest.raises(ConfigError, match="learning_rate"):
        combinations([Planned("softmax", from_dict(TINY))], rules)


@pytest.mark.parametrize(
    "rules",
    [
        Fairness(search={"optimizer.schedule": ["rsqrt", "linear"], LAST: [0.0, 1e-3]}),
        Fairness(search={"optimizer.b1": Range(low=0.5, high=1.5)}, trials=2),
        Fairness(match="state_bytes"),
    ],
)
def test_rules_that_no_run_can_have_leave_the_directory_free(rules, tmp_path):
    """Once they were corrected, the directory was said to hold another comparison."""
    linformer = {"attention": {"name": "linformer", "features": 4}, "causal": False}
    sweep = [*planned("linear"), Planned("linformer", tiny(model=linformer))]

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(ConfigError):
        compare.compare(sweep, tmp_path, title="t", run=stop, rules=rules)
    with pytest.raises(KeyboardInterrupt):
        compare.compare(sweep, tmp_path, title="t", run=stop)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("budgets = {'steps': 3}", "budget"),
        ("serch = {'seed': [1, 2]}", "search"),
        ("matc = 1", "match"),
    ],
)
def test_a_misspelt_rule_is_refused(tmp_path, line, meant):
    path = write_config(tmp_path / "c.py", f"{SWEEP}{line}\n_{line}\n")
    with pytest.raises(ConfigError, match=f"no rule; did you mean '{meant}'") as error:
        read_comparison(str(path))
    assert len(error.value.problems) == 1


def test_a_misspelt_rule_and_what_is_wrong_in_others_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        fairness({"budgets": {"steps": 3}, "match": "parms"}, "c.py")
    assert [line.split(":")[0] for line in error.value.problems] == ["budgets", "match"]
