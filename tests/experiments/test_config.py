"""A configuration is right, or every mistake in it is named at once."""

import dataclasses
import enum
import json
import os
import re
import resource
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import pydantic
import pytest
from absl import flags
from tiny_experiment import TINY, tiny, write_config

from attn import MECHANISMS, Linear, Mechanism
from attn.nn import EncoderConfig
from experiments import cli, compare, config, train, validation
from experiments.config import Experiment, Model, Optimizer, mechanism, task
from experiments.config_file import override, read, read_comparison, read_sweep
from experiments.errors import ConfigError
from experiments.optimizer import SCHEDULES
from experiments.own import check_own
from experiments.sweep import plan
from experiments.tasks import TASKS, Digits
from experiments.validation import from_dict, to_dict

ROOT = Path(__file__).parents[2]


def problems(raw: dict) -> list[str]:
    with pytest.raises(ConfigError) as error:
        from_dict(raw)
    return list(error.value.problems)


@pytest.mark.parametrize(
    "experiment",
    [
        tiny(),
        tiny(model={"attention": [{"name": "softmax", "logit_cap": 5.0}]}),
        tiny(task={"name": "recall", "alpha": 1.0}),
    ],
)
def test_json_and_back_is_equal(experiment: Experiment):
    assert from_dict(json.loads(json.dumps(to_dict(experiment)))) == experiment


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sweep", "search", "dry_run"])
def test_what_is_no_command_says_which_is(module):
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{module}", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no command, but ")
    assert "python -m experiments.compare --config=FILE" in done.stderr


def test_an_error_of_the_system_names_a_path(capsys):
    def run(values):
        raise OSError(28, "No space left on device")

    define = lambda values: flags.DEFINE_string("workdir", None, "", flag_values=values)
    assert cli.main(define, run, usage="", arguments=["--workdir=here"]) == 5
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device in here\n"
    two = lambda values: (define(values), flags.DEFINE_string("out", None, "", flag_values=values))
    assert cli.main(two, run, usage="", arguments=["--workdir=here", "--out=there"]) == 5
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device in there\n"
    assert cli.main(lambda values: None, lambda values: open("/no"), usage="", arguments=[]) == 5
    assert capsys.readouterr().err.endswith("directory: '/no'\n")


def test_what_calls_exit_in_the_middle_has_not_succeeded(capsys):
    """A mechanism or a task of the user's own that does ended `train` with 0 and no result."""
    assert cli.main(lambda values: None, lambda values: sys.exit(0), usage="", arguments=[]) == 1
    told = capsys.readouterr().err
    assert re.fullmatch(r"error: .*test_config.py:\d+ ended it: sys.exit\(0\)\n", told)


def test_a_number_written_as_integer_or_float_is_the_same_experiment():
    one, other = tiny(optimizer={"learning_rate": 1}), tiny(optimizer={"learning_rate": 1.0})
    assert json.dumps(to_dict(one)) == json.dumps(to_dict(other))


def test_every_mistake_is_named_at_once_with_the_nearest_name():
    raw = {
        "task": {"name": "recal"},
        "layers": 3,
        "model": {
            "attention": {"name": "softmax", "implementation": "blokwise", "logit_cp": 3},
            "heads": 5,
            "laers": 2,
            "causal": 1,
        },
        "optimizer": {"learning_rate": "fast", "schedule": "cosin", "b1": 1.0},
        "train": {"steps": 0, "eval_every": 1.5},
        "seed": float("nan"),
    }
    found = problems(raw)
    for start, end in {
        "task.name: unknown task 'recal'": "did you mean 'recall'?",
        "layers: unknown field": "did you mean 'model.layers'?",
        "model.attention.implementation: ": "did you mean 'blockwise'?",
        "model.attention.logit_cp: unknown field": "did you mean 'logit_cap'?",
        "model.laers: unknown field": "did you mean 'layers'?",
        "model.causal: ": "got 1",
        "model.heads: expected a divisor of width 64, got 5": "",
        "optimizer.learning_rate: ": "got 'fast'",
        "optimizer.schedule: ": "did you mean 'cosine'?",
        "optimizer.b1: should be less than 1": "got 1.0",
        "train.steps: ": "got 0",
        "train.eval_every: ": "got 1.5",
        "train.batch_size: expected a value": "got none",
        "seed: ": "got nan",
    }.items():
        assert any(p.startswith(start) and p.endswith(end) for p in found), (start, found)
    assert len(found) == 14


def test_what_a_record_says_of_itself_is_named_at_its_field():
    assert problems({**TINY, "task": {"name": "listops", "train": -1, "test": 0, "tset": 3}}) == [
        "task.tset: unknown field; did you mean 'test'?",
        "task.train: expected an integer in 1..1000000, got -1",
        "task.test: expected an integer in 1..1000000, got 0",
    ]


def test_a_mistake_is_not_blamed_on_what_stands_in_for_it():
    model = {"width": "9x", "heads": 6, "kv_heads": 4}
    assert problems({**TINY, "model": model}) == [
        "model.width: should be a valid integer, got '9x'",
        "model.kv_heads: expected a divisor of heads 6, got 4",
    ]


@pytest.mark.parametrize("raw", [{}, {"model": 3}, {"task": []}, {"task": {"name": ["a"]}}])
def test_any_shape_of_nonsense_is_refused(raw: dict):
    assert problems({**raw})


def test_a_mechanism_that_cannot_be_causal_is_refused():
    assert problems({**TINY, "model": {"attention": "linformer", "causal": True}}) == [
        "model.causal: linformer cannot be causal"
    ]


def test_a_mechanism_that_is_only_causal_is_refused_without():
    model = {**TINY["model"], "attention": ["softmax", "gated_delta_net"], "layers": 2}
    assert from_dict({**TINY, "model": model}).model.causal
    model = {**model, "causal": False, "pooling": "cls", "layers": 3}
    assert problems({**TINY, "model": model}) == [
        "model.attention: expected one for each of 3 layers, got 2; give it alone, not in a tuple, "
        "to use one in every layer",
        "model.pooling: expected another with GatedDeltaNet, defined with Causal only, "
        "where CLS at index 0 sees no other token, got 'cls'",
        "model.causal: expected True for gated_delta_net, defined with a causal mask only, got "
        "False",
    ]


def test_what_a_mechanism_asks_of_its_layer_is_set_from_the_command_line():
    full = {"name": "gated_delta_net", "short_conv": 4, "output_gate": "silu", "output_norm": True}

    def attention(*arguments, given=full):
        raw = {**TINY, "model": {**TINY["model"], "attention": given}}
        lines = [f"--config.model.attention.{argument}" for argument in arguments]
        return from_dict(override(raw, lines)).model.attention

    record = MECHANISMS["gated_delta_net"]
    bare = record(short_conv=0, output_gate=None, output_norm=False)
    assert attention("short_conv=0", "output_gate=None", "output_norm=False") == bare
    assert attention("output_gate=sigmoid").output_gate == "sigmoid"
    given = to_dict(tiny(model={"attention": mechanism("delta_net")}))["model"]["attention"]
    assert attention("output_gate=silu", given=given).output_gate == "silu"
    assert attention("name=gated_delta_net", given="softmax") == record()
    with pytest.raises(ConfigError) as error:
        attention("short_conv=-1", "output_gate=tanh")
    assert list(error.value.problems) == [
        "model.attention.short_conv: expected a number of taps, 0 for none, got -1",
        "model.attention.output_gate: expected 'silu' or 'sigmoid', or None, got 'tanh'",
    ]


def test_the_model_has_every_field_of_the_encoder():
    names = lambda cls: {field.name for field in dataclasses.fields(cls)}
    decided_by_the_task = {*Digits().sizes, "head", "mechanism"}
    assert (
        names(Model) - {"attention", "causal", "cross", "family"}
        == names(EncoderConfig) - decided_by_the_task
    )


def test_the_schedules_are_those_of_the_table():
    assert set(Optimizer.__annotations__["schedule"].__args__) == set(SCHEDULES)


def test_config_files_get_filled_in_records():
    assert mechanism("softmax", logit_cap=2.0)["implementation"] is None
    assert task("recall", length=8)["vocab_size"] == 8192
    with pytest.raises(ValueError, match="did you mean 'performer'"):
        mechanism("perfomer")


def test_overrides_from_the_command_line(tmp_path: Path):
    config = str(write_config(tmp_path / "c.py"))
    arguments = ["layers=2", "dropout=0", "tied=true", "attention={'name': 'softmax'}"]
    overrides = [f"--config.model.{a}" for a in arguments]
    overrides += ["--config.task.pairs=(2,)", "--config.optimizer.clip_norm=None"]
    experiment = read(config, overrides)
    assert experiment.model == tiny(model={"layers": 2, "dropout": 0.0, "tied": True}).model
    assert experiment.task.pairs == (2,)
    assert experiment.optimizer.clip_norm is None


@pytest.mark.parametrize("field", ["train.steps", "train.eval_every", "optimizer.learning_rate"])
@pytest.mark.parametrize("text", ["1_0", "010", " 7", "7 ", "0x7", "1_0.5", "٣"])
def test_a_number_is_written_plainly(field: str, text: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"{field}: .* got {text!r}"):
        read(str(write_config(tmp_path / "c.py")), [f"--config.{field}={text}"])


def test_what_is_no_number_may_begin_as_one(tmp_path: Path):
    config = str(write_config(tmp_path / "c.py"))
    given = ["--config.task.name=text", "--config.task.data_dir=007"]
    assert read(config, given).task.data_dir == "007"
    for text in ("0.5", "5e-1", "+.5", "50.e-2"):
        assert read(config, [f"--config.optimizer.b1={text}"]).optimizer.b1 == 0.5
    assert read(config, ["--config.task.pairs=1,2"]).task.pairs == (1, 2)


@pytest.mark.parametrize("order", [1, -1])
def test_fields_of_another_record_may_be_given_before_its_name(order, tmp_path: Path):
    config = str(write_config(tmp_path / "c.py"))
    overrides = [
        "--config.model.attention.name=linear",
        "--config.model.attention.feature_map=relu",
    ]
    assert read(config, overrides[::order]).model.attention == Linear(feature_map="relu")
    path = write_config(tmp_path / "d.py", "sweep = lambda: [{'model.attention.name': 'linear'}]")
    assert read_sweep(str(path))[0][1].model.attention == Linear()


def test_another_record_on_the_command_line_keeps_the_fields_of_a_sweep(tmp_path: Path):
    """Runs of 16 and 18 tokens had 256, the default of the other task, under their names."""
    sweep = "sweep = lambda: [{'task.length': n, 'seed': n} for n in (16, 18)]"
    path = str(write_config(tmp_path / "c.py", sweep))
    cells = read_sweep(path, ["--config.task.name=induction", "--config.task.vocab_size=8"])
    assert [(type(e.task), e.task.length) for _, e in cells] == [
        (TASKS["induction"], n) for n in (16, 18)
    ]
    assert {e.task.vocab_size for _, e in cells} == {8}


def test_a_sweep_that_never_ends_is_refused(tmp_path: Path):
    """`compare` and its --dry_run waited for it until the memory was full."""
    sweep = "def sweep():\n    while True:\n        yield {'seed': 1}\n"
    path = write_config(tmp_path / "c.py", sweep)
    with pytest.raises(ConfigError, match=r"sweep\(\) yields more than 100,000 runs"):
        read_sweep(str(path))


def test_sweep_yields_an_experiment_for_each_dict(tmp_path: Path):
    sweep = "def sweep():\n    for s in (1, 2):\n        yield {'name': 'a', 'seed': s}\n"
    path = write_config(tmp_path / "c.py", sweep)
    cells = read_sweep(str(path), ["--config.model.layers=2"])
    assert [(c["seed"], e.seed, e.model.layers) for c, e in cells] == [(1, 1, 2), (2, 2, 2)]
    path.write_text(path.read_text().replace("'seed'", "'sed'"))
    with pytest.raises(ConfigError, match="sed: unknown field; did you mean 'seed'"):
        read_sweep(str(path))


def test_numbers_of_numpy_are_numbers(tmp_path: Path):
    """`np.arange` gave a sweep "a valid integer, got 'np.int64(8)'", a range of it was no list."""
    text = """
import numpy as np
plain, budget = get_config, {"steps": np.int64(8)}
search = {"optimizer.weight_decay": np.linspace(0, 1, 3), "optimizer.b1": [np.float32(0.5), 0.25]}
get_config = lambda: plain() | {"seed": np.int32(3), "mask_rate": np.float64(0.15)}
def sweep():
    for width in np.arange(4, 9, 4):
        attention = {"name": "performer", "features": np.int16(width)}
        pairs = np.arange(1, width // 2)
        yield {"model.width": width, "task.pairs": pairs, "model.attention": attention}
"""
    path = str(write_config(tmp_path / "c.py", text))
    sweep, rules = read_comparison(path, ["--config.seed=5"])
    assert [p.variant for p in plan(sweep)] == [
        "performer width=4, pairs=[1], features=4",
        "performer width=8, pairs=[1, 2, 3], features=8",
    ]
    assert [x.task.pairs for _, x in sweep] == [(1,), (1, 2, 3)]
    assert {x.seed for _, x in sweep} == {5}
    assert rules.budget == {"steps": 8}
    assert rules.search == {"optimizer.weight_decay": [0.0, 0.5, 1.0], "optimizer.b1": [0.5, 0.25]}


@pytest.mark.parametrize(
    ("config", "valid"),
    [
        ("dates.py:transformr", "transformer"),
        ("gating.py:inducton", "induction"),
        ("mqar.py:65", "64"),
        ("mqar.py:zz", "64"),
    ],
)
def test_an_argument_that_a_config_does_not_have_is_told_the_nearest(config, valid):
    with pytest.raises(ConfigError, match=f"unknown argument; did you mean '{valid}'"):
        read(f"{ROOT / 'configs' / config}")


def test_a_key_that_a_config_itself_lacks_is_no_unknown_argument(tmp_path: Path):
    text = "TABLE = {'a': {'x': 1}}\ndef get_config(arg):\n    return TABLE[arg]['y']"
    (path := tmp_path / "c.py").write_text(text)
    with pytest.raises(ConfigError, match=r"get_config\('a'\), line 3: KeyError: 'y'"):
        read(f"{path}:a")


def test_a_module_beside_a_config_is_told_how_to_be_found(tmp_path: Path):
    (tmp_path / "mine_alone.py").touch()
    (path := tmp_path / "c.py").write_text("from mine_alone import X")
    with pytest.raises(ConfigError, match=f"line 1: .*; it .*set PYTHONPATH={tmp_path.resolve()}"):
        read(str(path))
    path.write_text("import no_such_module")
    with pytest.raises(ConfigError) as told:
        read(str(path))
    assert "PYTHONPATH" not in str(told.value)


BROKEN = {
    "syntax": "x = (\n",
    "nul bytes": "x\0",
    "empty": "",
    "raises": "def get_config():\n    return 1 / 0\n",
    "exits": "raise SystemExit(0)",
    "needs an argument": "def get_config(arg):\n    return {}\n",
    "returns a number": "def get_config():\n    return 3\n",
    "returns odd keys": "def get_config():\n    return {1: 2, 'a.b': 3, 'c': object()}\n",
    "import": "import no_such_module",
    "deep": "def get_config():\n    d = {}\n    for _ in range(5000):\n        d = {'a': d}\n"
    "    return d\n",
    # json goes on where Python's own functions end: to where is another place in each version
    "less deep": "def get_config():\n    d = {}\n    for _ in range(600):\n        d = {'a': d}\n"
    "    return d\n",
    "itself": "def get_config():\n    d = {}\n    d['model'] = d\n    return d\n",
    "brackets": "x = " + "(" * 5000 + ")" * 5000,
    "big": "#" * 10_000_000,
}


@pytest.mark.parametrize("kind", [*BROKEN, "missing", "folder", "device"])
def test_a_broken_file_is_one_clear_message(kind: str, tmp_path: Path, capsys):
    path = {"folder": tmp_path, "device": Path("/dev/zero")}.get(kind, tmp_path / "c.py")
    if kind in BROKEN:
        path.write_text(BROKEN[kind])
    arguments = [f"--config={path}", f"--workdir={tmp_path / 'run'}"]
    assert command(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "Traceback" not in message
    assert len(message) < 1000
    assert not (tmp_path / "run").exists()
    # and of a comparison, where the copy for each run was a traceback
    if "def get_config" in BROKEN.get(kind, ""):
        path.write_text(f"{BROKEN[kind]}\ndef sweep():\n    yield {{}}\n")
        assert compare.main(arguments) == 2
        assert capsys.readouterr().err.splitlines()[1:] == message.splitlines()[1:]


def command(arguments: list[str]) -> int:
    return train.main(arguments)


def test_unknown_abbreviated_and_repeated_flags_are_refused(tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    wrong = ["--work=x", "--flagfile=y", "--config.seed=1", "--config.seed=2", "stray", "--nope"]
    wrong += ["--config.model.tied", "--noconfig.model.tied", "--noprogress", "--progress"]
    assert command([f"--config={config}", *wrong]) == 2
    message = capsys.readouterr().err
    for line in (
        "--work=x: unknown flag; did you mean '--workdir'?",
        "--flagfile=y: unknown flag",
        "--config.seed: given twice",
        "--config.model.tied: given twice",
        "--progress: given twice",
        "stray: unexpected argument",
        "--nope: unknown flag",
        "--workdir: is required",
    ):
        assert line in message


def test_a_switch_with_a_value_is_a_mistake_and_no_traceback(tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    assert command([f"--config={config}", f"--workdir={tmp_path}", "--noprogress=3"]) == 2
    assert "--noprogress=3 does not take an argument" in capsys.readouterr().err


def test_a_flag_after_a_mistake_is_read_too(tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    wrong = ["--progress=3", "--sink=paper", f"--config={config}", "--config.seed=-1"]
    assert command([*wrong, f"--workdir={tmp_path}"]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("error: 3 mistakes")
    for line, told in zip(lines, ("--progress=3", "--sink=paper", "seed: should be"), strict=True):
        assert told in line


def test_a_number_below_0_after_a_space_is_the_value_of_its_flag(tmp_path: Path, capsys):
    config = write_config(tmp_path / "c.py")
    wrong = ["--config.seed", "-1", "--config.optimizer.weight_decay", "-.5", "--workdir", "-3x"]
    assert command([f"--config={config}", *wrong]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  optimizer.weight_decay: should be greater than or equal to 0, got -0.5",
        "  seed: should be greater than or equal to 0, got -1",
    ]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "c.py")
    (tmp_path / "run" / "cells").mkdir(parents=True)
    assert command(["--config=~/c.py", "--workdir=~/run", "--config.init_from=~/old"]) == 5
    assert f"{tmp_path}/run holds a comparison" in capsys.readouterr().err
    assert {x.name for x in tmp_path.iterdir()} == {"c.py", "run"}


def processor_time(command: list[str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Seconds of it, not of the clock, because a busy machine is not a slow program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


@pytest.mark.slow
def test_mistakes_take_little_more_than_importing_jax_and_make_nothing(tmp_path: Path):
    arguments = ["--config.model.heads=3", "--config.train.stepss=1", "--workdr=x"]
    module = [sys.executable, "-m", "experiments.train"]
    config = write_config(tmp_path / "c.py")
    times, peers = [], []
    for _ in range(2):
        peers.append(processor_time([sys.executable, "-c", "import jax, flax.nnx, pydantic"])[0])
        seconds, done = processor_time([*module, f"--config={config}", *arguments])
        times.append(seconds)
        assert done.returncode == 2, done.stderr
        assert "4 mistakes" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    # Nothing is compiled, no task's data is made; 1.4 is usual.
    assert min(times) < 2 * min(peers)
    assert os.listdir(tmp_path) == ["c.py"]


# complexity is a study's, of settings of its own, and tested with it
EXPERIMENTS = sorted({*(ROOT / "configs").glob("*.py")} - {ROOT / "configs/complexity.py"})


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_config_that_ships_is_right(path: Path):
    assert read(str(path)).train.steps > 0
    if "def sweep" in path.read_text():
        assert read_sweep(str(path))


def test_what_is_registered_too_late_is_told_where_its_line_belongs(monkeypatch):
    monkeypatch.setitem(MECHANISMS, "tempered", MECHANISMS["softmax"])
    with pytest.raises(ValueError, match=r"'tempered': added to .* too late; .*attn/__init__\.py"):
        mechanism("tempered")
    # a task was unknown, and it was asked whether itself was meant
    monkeypatch.setitem(TASKS, "twice", TASKS["copy"])
    with pytest.raises(ValueError, match=r"'twice': added to TASKS too late; .*tasks/__init__\.py"):
        task("twice")


def own(kind: object = int, default: object = None, name: str = "x") -> type:
    """A mechanism of a user's own, with such a field."""
    field = (name, kind, dataclasses.field(default=default))
    options = {"frozen": True, "kw_only": True, "bases": (MECHANISMS["softmax"],)}
    return dataclasses.make_dataclass("Mine", [field], **options)


RECORDS = [dataclasses.make_dataclass("R", [("a", int, 1)], frozen=x) for x in (True, False)]


@pytest.mark.parametrize(
    ("kind", "got"),
    [
        (list[int], "Mine.x: expected a number, .* got list[int]"),
        (dict | None, "got dict | None"),  # was "unhashable type: 'dict'" or pydantic's traceback
        (Callable, "got collections.abc.Callable"),
        (types.SimpleNamespace, "got types.SimpleNamespace"),
        (MECHANISMS["linear"], "Linear"),  # its key was lost
        (RECORDS[1], "R"),
        ("Missing", "Mine: expected types that are known .* 'Missing' is not defined"),
    ],
)
def test_a_mechanism_of_ones_own_has_fields_that_a_config_can_say(kind, got, monkeypatch):
    monkeypatch.setitem(config.TOKEN_MIXERS, "mine", own(kind))
    validation._adapter.cache_clear()
    (line,) = problems(TINY)
    assert all(part in line for part in got.split(".*"))


def test_a_mechanism_of_ones_own_has_all_methods_and_no_field_name(monkeypatch):
    monkeypatch.setitem(config.TOKEN_MIXERS, "mine", own(str, "mine", name="name"))
    half = type("Half", (Mechanism,), {"__call__": print})
    monkeypatch.setitem(config.TOKEN_MIXERS, "half", half)
    validation._adapter.cache_clear()
    named, abstract = problems(TINY)
    assert "Mine.name: expected another name" in named
    assert "Half: expected a method examples and a method flops and a met" in abstract


@pytest.mark.parametrize(
    "kind",
    [
        *(int | None, tuple[tuple[str, ...], float], Literal["a", 1], Any, RECORDS[0]),
        *(enum.StrEnum("E", "A"), enum.IntEnum("E", "A"), NewType("N", int), Annotated[int, "x"]),
    ],
)
def test_fields_that_a_config_can_say_are_taken(kind, monkeypatch):
    monkeypatch.setitem(config.TOKEN_MIXERS, "mine", own(kind))
    check_own()


def test_a_field_of_any_kind_has_a_value_that_can_be_hashed():
    """A dict ended in a traceback, for programs are kept by the mechanism."""
    mine = config._one_of({"mine": own(Any)})
    told = r"expected fields that can be hashed, such as texts, numbers and tuples, got .*'dict'"
    with pytest.raises(pydantic.ValidationError, match=told):
        pydantic.TypeAdapter(mine).validate_json('{"name": "mine", "x": {"a": 1}}')
    assert pydantic.TypeAdapter(mine).validate_json('{"name": "mine", "x": [[1], "a"]}').x


@pytest.mark.parametrize("entry", [MECHANISMS["linear"](), print, Digits, "softmax"])
def test_what_is_added_to_a_table_is_a_class_of_its_kind(entry, monkeypatch):
    monkeypatch.setitem(config.TOKEN_MIXERS, "mine", entry)
    validation._adapter.cache_clear()
    (line,) = problems(TINY)
    assert line.startswith("mine: expected a subclass of Mechanism or Mixer, got ")


def test_a_mechanism_of_ones_own_takes_no_name_of_a_default(monkeypatch):
    """StopIteration, wherever a configuration had softmax without saying so."""
    monkeypatch.setitem(config.TOKEN_MIXERS, "softmax", own())
    validation._adapter.cache_clear()
    (line,) = problems(TINY)
    assert line.startswith("softmax: expected attn.Softmax, which")


def test_a_mechanism_of_ones_own_takes_no_name_of_a_mixer(monkeypatch):
    """The mixer was trained in its place, under its name."""
    monkeypatch.setitem(MECHANISMS, "conv", own())
    validation._adapter.cache_clear()
    (line,) = problems(TINY)
    assert line.startswith("conv: expected a name of its own, as a mechanism and a mixer have it")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(tuple[tuple[int, ...], ...], ((1, 2), (3,))), (RECORDS[0], RECORDS[0](2))],
)
def test_a_field_of_tuples_in_tuples_or_a_record_is_read_as_it_was_written(kind, value):
    mine, strict = own(kind, value), pydantic.ConfigDict(strict=True)
    adapter = pydantic.TypeAdapter(dict[str, config._one_of({"mine": mine})], config=strict)
    plain = {"name": "mine", "x": dataclasses.asdict(mine())["x"]}  # as config.json has it
    assert adapter.validate_json(json.dumps({"attention": plain})) == {"attention": mine()}
