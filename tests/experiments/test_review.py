"""What a hostile review found once, each told in two lines and kept from coming back."""

import json

import pytest

from experiments import fits, loop, manifest, records, train
from experiments.cells import Cells
from experiments.config_file import override, read_sweep
from experiments.errors import ConfigError, InUseError, RunDirectoryError
from experiments.lock import LOCK, held
from experiments.rundir import claimed, read_json
from experiments.sweep import Planned, plan

from tiny_experiment import tiny  # isort: skip

DEEP = "[" * 200_000

SWEEP = """
def get_config():
    return {
        "task": "digits",
        "model": {"attention": {"name": "linear", "feature_map": "elu", "chunk": 8}},
        "optimizer": {"learning_rate": 1e-3},
        "train": {"steps": 1, "batch_size": 2},
    }

def sweep():
    CELLS
"""


def sweep_of(tmp_path, cells):
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP.replace("CELLS", f"return {cells!r}"))
    return str(path)


def test_overrides_hold_in_the_order_they_are_given():
    # a bare name used to be applied last, over the fields given after it
    raw = {"model": {"attention": {"name": "linear", "feature_map": "elu"}}}
    given = ["--config.model.attention=performer", "--config.model.attention.features=64"]
    want = {"model": {"attention": {"name": "performer", "features": 64}}}
    assert override(raw, given) == want
    given[0] = "--config.model.attention.name=performer"
    assert override(raw, given) == want


def test_an_override_of_what_is_swept_is_refused(tmp_path):
    # it gave a table in which every label but one was false
    path = sweep_of(tmp_path, [{"model.attention": "linear"}, {"model.attention": "softmax"}])
    for argument in ("--config.model.attention=window", "--config.model.attention.chunk=3"):
        with pytest.raises(ConfigError, match=r"sweep\(\) sets model.attention"):
            read_sweep(path, [argument])


def test_one_run_under_two_labels_is_refused(tmp_path):
    # the same model was trained twice and shown as two variants
    path = sweep_of(tmp_path, [{"model.layers": 2}, {"name": "other", "model.layers": 2}])
    with pytest.raises(ConfigError, match="more than once"):
        plan(read_sweep(path))


def test_an_empty_sweep_says_so(tmp_path):
    with pytest.raises(ConfigError, match="yields nothing"):
        read_sweep(sweep_of(tmp_path, []))


def test_a_config_with_odd_keys_is_a_mistake_not_a_traceback():
    with pytest.raises(ConfigError, match="nested dicts"):
        override({"train": {}, 3: 4}, [])


def test_training_does_not_take_over_a_comparison(tmp_path):
    (tmp_path / "cells").mkdir()
    with pytest.raises(RunDirectoryError, match="comparison"), claimed(tmp_path, tiny()):
        pass


@pytest.mark.parametrize("damage", ["{}", "[]", '{"test": {"accuracy": "hi"}}', '{"valid', DEEP])
def test_a_damaged_result_is_not_a_finished_run(tmp_path, damage):
    # `{}` counted as a seed and `"hi"` was averaged
    one = Planned("softmax", tiny())
    cells = Cells(tmp_path, (one,))
    cells.folder(one).mkdir(parents=True)
    (cells.folder(one) / loop.RESULT).write_text(damage)
    assert cells.unfinished() == [one]
    whole = {"accuracy": 0.5}
    whole = {"validation": whole, "test": whole, "parameters": 3, "steps_per_second": 2.0}
    whole = records.sealed(whole, one.config)
    assert records.is_result(json.loads(json.dumps(whole)), one.config)


def test_a_holder_that_is_not_utf8_is_named_as_well_as_it_can_be(tmp_path):
    with held(tmp_path):
        (tmp_path / LOCK).write_bytes(b"pid \xff\n")
        with pytest.raises(InUseError, match="running process \\(pid \ufffd\\)"):
            with held(tmp_path):
                pass
    with held(tmp_path):
        pass


def test_json_nested_beyond_the_stack_is_damaged_not_a_traceback(tmp_path):
    path = tmp_path / "any.json"
    path.write_text(DEEP + "\n")
    with pytest.raises(RunDirectoryError, match=r"any\.json cannot be read") as error:
        read_json(path)
    assert error.value.code == 5
    assert records.read_object(path) is None
    assert records.read_metrics(path) == []
    path.rename(tmp_path / manifest.NAME)
    with pytest.raises(manifest.Damaged, match="cannot be read"):
        manifest.read(tmp_path)


def test_a_model_larger_than_memory_is_refused_at_once(tmp_path):
    # XLA waited for the allocation for ever, deaf to SIGTERM
    with pytest.raises(ConfigError, match="GB"):
        train.run(tiny(model={"width": 1_000_000, "heads": 1}), tmp_path, progress=False)


@pytest.mark.parametrize("name", ["batch_size", "eval_batch_size"])
def test_batches_larger_than_memory_are_refused_before_one_is_drawn(name, tmp_path):
    # numpy's error was a traceback, or the kernel killed the process
    mistake = rf"train\.{name}: expected at most \d+ rows of length \d+, .* got 2147483647"
    with pytest.raises(ConfigError, match=mistake):
        train.run(tiny(train={name: 2**31 - 1}), tmp_path, progress=False)


@pytest.mark.slow
def test_a_step_larger_than_memory_is_refused_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_device", lambda: 1_000_000)
    with pytest.raises(ConfigError, match=r"train\.eval_batch_size: .* GB are needed"):
        train.run(tiny(train={"eval_batch_size": 4096}), tmp_path, progress=False)


def test_a_split_that_would_be_drawn_for_ever_is_a_mistake():
    with pytest.raises(ConfigError, match=r"task\.validation: expected an integer in 1\.\.1000000"):
        tiny(task={"validation": 2**31 - 1})


def test_positions_that_a_mechanism_cannot_take_are_named_with_the_other_mistakes():
    # it was found after training had begun, and called `bias`, which no config has
    with pytest.raises(ConfigError, match=r"positions: Linear has no scores to add alibi to"):
        tiny(model={"attention": {"name": "linear"}, "positions": "alibi"})
