"""Optuna draws the trials of a search; whatever interrupts it, it goes on as if nothing had."""

import contextlib
import dataclasses
import itertools
import json
import math
import sys
from pathlib import Path

import pytest
from test_fair import SWEEP, planned
from tiny_experiment import write_config

from experiments import compare, draws, records
from experiments.cells import Cells, begin
from experiments.config_file import read_comparison
from experiments.errors import ConfigError, DataError, LabError, RunDirectoryError
from experiments.fairness import Fairness, Range, fairness
from experiments.ready import ready
from experiments.search import check_values, chosen, search, trial_runs

RATE = "optimizer.learning_rate"
RULES = Fairness(
    search={
        RATE: Range(low=1e-4, high=1.0, log=True),
        "model.mlp_width": Range(low=4, high=6),
        "optimizer.b1": [0.8, 0.9],
    },
    trials=12,
)


BEST = {"softmax": 1e-1, "linear": 1e-3}


class Finish:
    """Stands in for the runs: a variant is best at its own learning rate."""

    def __init__(self, *, stop_at: int = 10**9) -> None:
        self.ran: list[str] = []
        self.stop_at = stop_at

    def __call__(self, cells: Cells) -> bool:
        for p in cells.unfinished():
            if len(self.ran) == self.stop_at:
                raise KeyboardInterrupt
            self.ran.append(p.name)
            off = math.log10(p.experiment.optimizer.learning_rate / BEST[p.variant])
            scores = {"accuracy": 1 / (1 + abs(off))}
            result = {"validation": scores, "test": {"accuracy": 0.0}, "parameters": 1}
            cells.folder(p).mkdir(parents=True)
            result = records.sealed(result | {"steps_per_second": 1.0}, p.config)
            (cells.folder(p) / "result.json").write_text(json.dumps(result))
        return True


def names(cells: Cells) -> list[str]:
    return [p.name for p in cells.planned]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Cells:
    pytest.importorskip("optuna", reason="the extra [search]")
    return search(planned("softmax", "linear"), RULES, tmp_path_factory.mktemp("a"), Finish())


def test_trials_are_drawn_from_the_ranges_and_get_better(whole: Cells):
    assert len(whole.planned) == 24
    for variant in ("softmax", "linear"):
        found = [p.experiment for p in whole.planned if p.variant == variant]
        assert all(1e-4 <= e.optimizer.learning_rate <= 1 for e in found)
        assert len({e.optimizer.learning_rate for e in found}) == 12
        assert min(e.optimizer.learning_rate for e in found) < 1e-2  # evenly, it would be rare
        assert {e.model.mlp_width for e in found} <= {4, 5, 6}
        assert {e.optimizer.b1 for e in found} == {0.8, 0.9}
    # the first were drawn without looking, the rest by what came out of them
    rates = lambda v, a: [p.experiment.optimizer.learning_rate for p in whole.planned[a::2]]
    assert rates("softmax", 0)[:10] == rates("linear", 1)[:10]
    assert rates("softmax", 0)[10:] != rates("linear", 1)[10:]


def test_a_few_trials_are_spread_over_the_ranges(tmp_path: Path):
    """Three or four were all within the middle seventh of a range, whatever was searched."""
    pytest.importorskip("optuna", reason="the extra [search]")
    found = search(planned("softmax"), dataclasses.replace(RULES, trials=4), tmp_path, Finish())
    of = lambda p: (p.experiment.optimizer, p.experiment.model.mlp_width)
    rates = sorted(math.log10(of(p)[0].learning_rate) for p in found.planned)
    assert max(b - a for a, b in itertools.pairwise([-4, *rates, 0])) < 2  # of 4 decades
    assert {of(p)[1] for p in found.planned} == {4, 5, 6}
    assert {of(p)[0].b1 for p in found.planned} == {0.8, 0.9}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 10])
def test_points_that_are_spread_leave_no_large_gap(count: int):
    for axis in zip(*(draws.spread(n, 3) for n in range(count))):
        assert max(b - a for a, b in itertools.pairwise([0, *sorted(axis), 1])) < 2 / count
    corners = {tuple(x > 0.5 for x in draws.spread(n, 2)) for n in range(2 * count)}
    assert len(corners) == 4 or count == 2


@pytest.mark.parametrize("log", [False, True])
def test_a_share_of_a_range_is_within_it(log: bool, tmp_path: Path):
    optuna = pytest.importorskip("optuna", reason="the extra [search]").distributions
    whole, real = optuna.IntDistribution(1, 4, log), optuna.FloatDistribution(0.1, 0.3, log)
    shares = [n / 100 for n in range(100)] + [1 - 1e-16]
    assert {draws._at(whole, x) for x in shares} == {1, 2, 3, 4}
    assert all(0.1 <= draws._at(real, x) <= 0.3 for x in shares)
    assert draws._at(real, 0.0) == 0.1


def test_the_best_on_validation_is_taken_and_their_number_said(whole: Cells):
    found = chosen(planned("softmax", "linear"), whole, RULES)
    for p in found:
        mine = [t for t in whole.planned if t.variant == p.variant]
        off = lambda t: abs(math.log10(t.experiment.optimizer.learning_rate / BEST[p.variant]))
        best = min(mine, key=off)
        assert (best.experiment.seed, p.experiment.seed) == (10**6, 0)
        assert p.experiment == best.having({"seed": 0}).experiment
        rate = f"learning_rate={p.experiment.optimizer.learning_rate:.4g}"
        assert p.notes["searched"].startswith(rate)
        assert p.notes["searched"].endswith(", best of 12")


def test_a_drawn_trial_has_its_values_and_number(whole: Cells):
    trial = whole.planned[3]
    rate = f"learning_rate={trial.experiment.optimizer.learning_rate:.4g}"
    assert rate in trial.notes["trial"]
    assert trial.notes["trial"].endswith(", draw 2 of 12")


def test_an_interrupted_search_goes_on_with_the_same_trials(whole: Cells, tmp_path: Path):
    first, second = Finish(stop_at=21), Finish()  # in the middle of a round
    with pytest.raises(KeyboardInterrupt):
        search(planned("softmax", "linear"), RULES, tmp_path, first)
    with (tmp_path / draws.JOURNAL).open("a") as file:
        file.write('{"op_code": 8, "wor')  # half a line, as a kill may leave it
    found = search(planned("softmax", "linear"), RULES, tmp_path, second)
    assert names(found) == names(whole)
    assert sorted(first.ran + second.ran) == sorted(names(whole))
    again = Finish()
    assert names(search(planned("softmax", "linear"), RULES, tmp_path, again)) == names(whole)
    assert again.ran == []


def test_more_trials_go_on_from_those_that_were_drawn(whole: Cells, tmp_path: Path):
    """More were refused as another comparison: all would have been run again."""
    few, finish, sweep = (
        dataclasses.replace(RULES, trials=11),
        Finish(),
        planned("softmax", "linear"),
    )
    begin(tmp_path, sweep, few)
    search(sweep, few, tmp_path, finish)
    begin(tmp_path, sweep, RULES)
    assert names(search(sweep, RULES, tmp_path, finish)) == names(whole)
    assert sorted(finish.ran) == sorted(names(whole))
    for other in (few, dataclasses.replace(RULES, trials=None, search={RATE: [0.1, 0.2]})):
        with pytest.raises(RunDirectoryError, match="trials: 12 there"):
            begin(tmp_path, sweep, other)


def test_a_trial_that_failed_is_one_of_their_number(tmp_path: Path):
    optuna = pytest.importorskip("optuna", reason="the extra [search]")
    rules = Fairness(search={RATE: Range(low=0.1, high=1.0)}, trials=3)
    (one,) = planned("softmax")

    def failing(cells: Cells) -> bool:
        (trial,) = cells.planned
        if trial.experiment.optimizer.learning_rate < worst:
            return Finish()(cells)
        cells.folder(trial).mkdir(parents=True, exist_ok=True)
        (cells.folder(trial) / "failure.json").write_text('{"error": "no"}')
        return True

    worst = 0.0
    first = search([one], rules, tmp_path, failing)
    with draws.journal(tmp_path):
        ended = draws.Draws(tmp_path, trial_runs([one])[0].name, rules).study.trials
    assert [t.state for t in ended] == [optuna.trial.TrialState.FAIL] * 3
    assert (
        chosen([one], first, rules)[0]
        .notes["searched"]
        .endswith("the first of 3, which all failed")
    )
    worst = 2.0  # --retry_failed: the same trials, and now they count
    for path in tmp_path.rglob("failure.json"):
        path.unlink()
    again = search([one], rules, tmp_path, lambda cells: Finish()(_emptied(cells)))
    assert names(again) == names(first)
    rates = [t.experiment.optimizer.learning_rate for t in again.planned]
    assert chosen([one], again, rules)[0].experiment.optimizer.learning_rate == min(rates)


def test_no_trial_has_a_seed_that_is_shown():
    """With seeds 0 and 10^6 the second had been looked at in every trial."""
    (one,) = planned("softmax")
    other = planned("linear")[0].having({"seed": 2 * 10**6})
    sweep = [one, one.having({"seed": 10**6}), other]
    assert [p.experiment.seed for p in trial_runs(sweep)] == [3 * 10**6] * 2
    assert [p.experiment.seed for p in trial_runs([one, other])] == [10**6, 3 * 10**6]
    last = one.having({"seed": 2**31 - 1})
    assert [p.experiment.seed for p in trial_runs([last])] == [10**6 - 1]


def test_trials_that_failed_are_not_among_those_that_one_was_best_of(tmp_path: Path):
    found = search(planned("softmax"), LISTED, tmp_path, Finish())
    best = found.planned[-1]
    (found.folder(best) / "result.json").unlink()
    (found.folder(best) / "failure.json").write_text('{"error": "no"}')
    (one,) = chosen(planned("softmax"), found, LISTED)
    assert one.notes["searched"] == "learning_rate=0.01, best of 2 (1 failed)"


def test_of_equally_accurate_trials_the_one_of_least_loss_is_taken(tmp_path: Path):
    """The first that was listed: a rate that had hardly learned, at 3.81 nats, in place of 3.25."""
    found = search(planned("softmax"), LISTED, tmp_path, Finish())
    for trial, loss in zip(found.planned, (3.81, 3.25, 3.4)):
        path = found.folder(trial) / "result.json"
        result = json.loads(path.read_text()) | {"validation": {"accuracy": 0.05, "loss": loss}}
        del result["sha256"]
        path.write_text(json.dumps(records.sealed(result, trial.config)))
    (one,) = chosen(planned("softmax"), found, LISTED)
    rate = found.planned[1].experiment.optimizer.learning_rate
    assert one.experiment.optimizer.learning_rate == rate
    told = f"learning_rate={rate}, the least loss of 3 equal bests of 3"
    assert one.notes["searched"] == told


def test_a_setting_that_is_drawn_again_is_no_other_trial(tmp_path: Path):
    """Five draws of two listed values were "the first of 3 equal bests of 5"."""
    pytest.importorskip("optuna", reason="the extra [search]")
    rules = Fairness(search={RATE: [1e-2, 1e-1]}, trials=5)
    found = search(planned("softmax"), rules, tmp_path, Finish())
    (one,) = chosen(planned("softmax"), found, rules)
    assert one.notes["searched"] == "learning_rate=0.1 (largest tried), best of 2"


def test_a_trial_that_has_not_ended_is_neither_told_nor_passed_over(tmp_path: Path, monkeypatch):
    """Another process may forget a failure, to try it again, just when it is to be told."""
    pytest.importorskip("optuna", reason="the extra [search]")
    monkeypatch.setattr("experiments.search._finished", lambda cells, finish: cells)
    with pytest.raises(LabError, match="nothing is chosen without it"):
        search(planned("softmax"), RULES, tmp_path, Finish())
    with draws.journal(tmp_path):
        told = draws.Draws(tmp_path, trial_runs(planned("softmax"))[0].name, RULES).study.trials
    assert not told
    left = search(planned("softmax"), LISTED, tmp_path, Finish())
    with pytest.raises(LabError, match="nothing is chosen without it"):
        chosen(planned("softmax"), left, LISTED)


def _emptied(cells: Cells) -> Cells:
    for p in cells.planned:
        cells.folder(p).rmdir()
    return cells


@pytest.mark.parametrize("damage", ["words", "[1, 2]", "5", '{"op_code": 99}', '{"op_code": 4}'])
def test_a_damaged_journal_is_refused_by_name(damage: str, whole: Cells, tmp_path: Path):
    (tmp_path / draws.JOURNAL).write_text(f"{damage}\n{damage}\n")
    with pytest.raises(DataError, match=r"search\.journal is damaged"):
        search(planned("softmax"), RULES, tmp_path, Finish())


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'attn-lab\[search\]'"):
        search(planned("softmax"), RULES, tmp_path, Finish())
    with pytest.raises(ConfigError, match=r"pip install 'attn-lab\[search\]'"):
        ready(tmp_path / "new", planned("softmax"), RULES)


def test_none_is_drawn_among_others(tmp_path: Path):
    pytest.importorskip("optuna", reason="the extra [search]")
    rules = fairness({"search": {"optimizer.clip_norm": [None, 0.5]}, "trials": 12}, "c.py")
    found = search(planned("softmax"), rules, tmp_path, Finish())
    assert {p.experiment.optimizer.clip_norm for p in found.planned} == {None, 0.5}
    assert names(search(planned("softmax"), rules, tmp_path, Finish())) == names(found)


def test_a_config_file_gives_ranges_and_trials(tmp_path: Path, capsys):
    rules = f"search = {{'{RATE}': {{'low': 1e-3, 'high': 1, 'log': True}}}}\ntrials = 5\n"
    path = str(write_config(tmp_path / "c.py", SWEEP + rules))
    _, found = read_comparison(path)
    assert found == Fairness(search={RATE: Range(low=1e-3, high=1, log=True)}, trials=5)
    assert "trials" not in repr(found)
    assert compare.main([f"--config={path}", f"--workdir={tmp_path}/x", "--config.seed=x"]) == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"search": {"optimizer.b1": {"low": 0.1, "high": 0.9}}}, "trials: expected how many .*b1"),
        ({"search": {"a": {"low": 2, "high": 1}}, "trials": 3}, "search.a.high: .*more than low=2"),
        ({"search": {"a": {"low": 0, "high": 1, "log": True}}, "trials": 3}, "search.a.low: .*log"),
        ({"search": {"a": {"low": 0, "hi": 1}}, "trials": 3}, "a.hi: unknown .* mean 'high'"),
        ({"search": {"a": {"low": 0.1, "high": math.inf}}, "trials": 3}, "a.high: .*finite number"),
        ({"search": {"a": {"low": "x", "high": 1}}, "trials": 3}, "search.a.low: "),
        ({"search": {"a": 3}, "trials": 3}, "search.a: .*array"),
        ({"search": {"a": [1, 2, 1.0]}}, "search.a: expected values that differ, got 1.0 twice"),
        ({"trials": 3}, "trials: expected a search"),
        ({"search": {"a": [1, 2]}, "trials": 0}, "trials: .*greater than or equal to 1"),
    ],
)
def test_mistakes_are_named(names: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        fairness(names, "c.py")


def test_the_ends_of_a_range_are_tried_before_any_run(tmp_path: Path):
    pytest.importorskip("optuna", reason="the extra [search]")
    rules = Fairness(search={"optimizer.b1": Range(low=0.5, high=1.5)}, trials=2)
    with pytest.raises(ConfigError, match=r"optimizer\.b1"):
        search(planned("softmax"), rules, tmp_path, Finish())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tried", "refused"),
    [
        ({"model.width": Range(low=8, high=16)}, "width': 9"),  # of two heads
        ({"model.width": [8, 12], "model.heads": [2, 3]}, "width': 8, 'model.heads': 3"),
        ({"model.width": [9, 12], "model.heads": [1, 3]}, ""),
        ({"model.width": Range(low=8, high=10**6)}, ""),  # too many to try
    ],
)
def test_what_a_run_cannot_have_is_refused_before_it_is_drawn(tried: dict, refused: str):
    """The draw of a width of 9 ended the search, and again whenever it went on."""
    expected = pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext()
    with expected:
        check_values(planned("softmax", "linear"), Fairness(search=tried, trials=5))


@pytest.mark.parametrize("field", ["optimizer.weight_decay", "optimizer.clip_norm"])
def test_a_field_of_real_numbers_is_not_searched_by_whole_ones(field: str):
    """Of a weight decay from 1 to 2 nothing between them was tried."""
    check = lambda x: check_values(planned("softmax"), Fairness(search={field: x}, trials=5))
    check(Range(low=1.0, high=2))
    with pytest.raises(ConfigError, match=rf"search\.{field}: expected low=1\.0 or high=2\.0"):
        check(Range(low=1, high=2))


class Passing(Finish):
    """Ends all but the last of the runs, as long as it may: that one's worker is killed."""

    def __init__(self, *, kills: int) -> None:
        super().__init__()
        self.kills = kills

    def __call__(self, cells: Cells) -> bool:
        if not self.kills or not cells.unfinished():
            return super().__call__(cells)
        self.kills -= 1
        return super().__call__(Cells(cells.workdir, cells.planned[:-1]))


LISTED = Fairness(search={RATE: [1e-3, 1e-2, 1e-1]})


def test_a_trial_whose_worker_was_killed_is_taken_up_again(tmp_path: Path):
    found = search(planned("softmax"), LISTED, tmp_path, finish := Passing(kills=1))
    assert sorted(finish.ran) == sorted(names(found))
    assert not found.unfinished()
    (best,) = chosen(planned("softmax"), found, LISTED)
    assert best.experiment.optimizer.learning_rate == 1e-1


def test_nothing_is_chosen_without_a_trial_that_never_ends(tmp_path: Path):
    with pytest.raises(LabError, match="1 of 3 trials did not end"):
        search(planned("softmax"), LISTED, tmp_path, Passing(kills=9))
    found = search(planned("softmax"), LISTED, tmp_path, Finish())
    assert not found.unfinished()
