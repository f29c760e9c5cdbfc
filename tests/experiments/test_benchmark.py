"""A benchmark times nothing that is wrong, and says why whoever is missing is missing."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from rich.console import Console

from attn import FULL, MECHANISMS, Causal, Padding, Segments, Window
from experiments import benchmark, provenance
from experiments.errors import ConfigError, Interrupted, LabError
from experiments.measure import commits, cost, decoding, machine, overhead, torch_peers
from experiments.measure.attention import Attention, needed, pairs
from experiments.measure.options import Options
from experiments.measure.oracle import Softmax
from experiments.measure.suites import suites
from experiments.measure.turns import MODES, Unavailable
from experiments.measure.verdict import Verdict
from experiments.report import benchmark as report_benchmark
from experiments.report.measurements import terminal

SMALL = Options(lengths=(32,), dtypes=("float32",), heads=((4, 2),), widths=(16,), rounds=3)


def rows(suite, mode=None, **options):
    found = suite.rows(dataclasses.replace(SMALL, **options))
    return [row for group in found for row in group if mode in (None, row["mode"])]


def softmax(**changes) -> Attention:
    return dataclasses.replace(suites()["softmax"], batch=1, **changes)


def test_what_is_wrong_is_not_timed_and_shown_in_red(tmp_path):
    class Double(Softmax):
        def __call__(self, *arguments):
            out, *gradients = super().__call__(*arguments)
            return 2 * out, *gradients

    found = rows(softmax(oracle=Double(Causal())), MODES[0], against=("jax.nn",))
    assert all(row["why"].startswith("wrong, so not timed: output") for row in found)
    assert not any("minimum" in row for row in found)
    caption = terminal("t", found).caption
    assert {str(span.style) for span in caption.spans} == {"red"}
    written = {"softmax": {"title": "causal softmax", "rows": found}}
    report_benchmark.write(written, {"command": "c"}, tmp_path)
    assert "<tr class=bad>" in (tmp_path / "benchmark.html").read_text()


def test_a_table_in_which_nothing_was_timed_has_room_for_why():
    """Its head was one cell wide, and Markdown shows no more of a row than its head has cells."""
    row = {"T": 8, "mode": "forward", "dtype": "float32", "heads": 4, "kv_heads": 4, "width": 8}
    row |= {"batch": 1, "contender": "attn", "why": "skipped: it would hold 99 GB", "mark": ""}
    told = report_benchmark.markdown({"x": {"title": "x", "rows": [row]}}, {"command": "x"})
    head, line, of_row = (x for x in told.splitlines() if x.startswith("|"))
    assert of_row == "| attn | skipped: it would hold 99 GB |"
    assert head.count("|") == line.count("|") == of_row.count("|")


def test_a_peer_a_little_outside_the_contract_is_timed_and_marked():
    from experiments.measure import turns

    ready = turns.Ready(lambda r: None, lambda: [])
    off = lambda error: lambda results: Verdict(error, "output is off by a bit")
    contenders = {
        "attn": turns.Contender(lambda: ready, off(0.5), ours=True),
        "ours, rough": turns.Contender(lambda: ready, off(1.5), ours=True),
        "rough": turns.Contender(lambda: ready, off(3.5)),
        "wrong": turns.Contender(lambda: ready, off(4.5)),
        "nan": turns.Contender(lambda: ready, off(np.inf)),
        "broken": turns.Contender(lambda: 1 / 0, off(0.0)),
    }
    shape = {"T": 1, "mode": "forward", "dtype": "float32", "heads": 1, "kv_heads": 1}
    group = turns.Group(shape | {"batch": 1, "width": 1}, contenders)
    found = {row["contender"]: row for row in turns.measure(group, SMALL)}
    assert [name for name, row in found.items() if "minimum" in row] == ["attn", "rough"]
    assert found["rough"]["mark"] == "outside the contract: output is off by a bit"
    assert found["broken"]["why"] == "failed: ZeroDivisionError: division by zero"
    json.dumps(list(found.values()), allow_nan=False)  # as benchmark.json is read elsewhere
    printed = terminal("t", list(found.values()))
    assert "* rough is outside the contract" in printed.caption.plain


def test_a_printed_table_is_wrapped_not_cut_at_80_characters():
    from experiments.measure import turns

    ready = turns.Ready(lambda r: None, lambda: [], temporary_bytes=123_456_789)
    shape = {"T": 1, "mode": "forward", "dtype": "float32", "heads": 1, "kv_heads": 1}
    names = ("attn", f"a peer of a name as long as {'it ' * 12}gets")
    contenders = {name: turns.Contender(lambda: ready, None, ours=name == "attn") for name in names}
    found = turns.measure(turns.Group(shape | {"batch": 1, "width": 1}, contenders), SMALL)
    shown = io.StringIO()
    Console(file=shown, width=80).print(terminal("t", found))
    assert "…" not in shown.getvalue()
    assert shown.getvalue().count(" 123 │") == 2  # a time may be 0.000123 ms


def test_who_cannot_take_part_says_why():
    ours, linen = rows(softmax(against={"flax.linen": 16}), MODES[0])
    assert ours["why"] == ""
    assert linen["why"] == "skipped: not beyond T = 16, for its memory and time"


def test_torch_takes_part_or_says_that_it_is_not_installed():
    for dtype in ("float32", "bfloat16"):
        _, row = rows(softmax(), MODES[1], against=("torch",), dtypes=(dtype,))
        assert row["why"] in ("", "skipped: torch is not installed")


@pytest.mark.slow
def test_torch_flex_takes_part_forward_or_says_why():
    pytest.importorskip("torch")
    (_, forward), (_, both) = suites()["softmax"].rows(
        dataclasses.replace(SMALL, against=("torch flex",))
    )
    assert both["why"] == "skipped: it has no backward pass on a CPU"
    if shutil.which("g++"):
        assert forward["why"] == ""
        assert forward["compile_seconds"] > 0
    else:
        assert forward["why"].startswith("skipped: it does not compile")


def test_any_mask_is_looked_up_by_flex():
    torch = pytest.importorskip("torch")
    seen = suites()["bigbird"].seen
    i, j = torch.arange(300)[:, None], torch.arange(300)[None]
    for mask in (Causal(), Window(7, 3), seen):
        found = torch_peers.mask_mod(mask, 300)(0, 0, i, j)
        assert (found.numpy() == mask.array(300, 300)).all()


def test_peers_for_a_gpu_say_so_elsewhere():
    _, *others = rows(softmax(), MODES[0], against=("cudnn", "tokamax"))
    assert [(row["contender"], row["why"]) for row in others] == [
        ("cudnn", "skipped: it runs on a GPU"),
        ("tokamax", "skipped: it runs on a GPU or TPU"),
    ]


def test_cudnn_is_told_of_the_mask_and_asked_for_16_bits(monkeypatch):
    from experiments.measure import peers

    told = []
    monkeypatch.setattr(peers, "on_gpu", lambda: True)
    tell = lambda q, k, v, **options: told.append(options) or q
    monkeypatch.setattr(peers.jax.nn, "dot_product_attention", tell)
    wide, narrow = (np.zeros((1, 8, 1, 4), dtype) for dtype in ("float32", "float16"))
    for mask in (Causal(), Window(3, 0)):
        peers.cudnn(mask, 8)(narrow, narrow, narrow)
    assert told == [
        {"implementation": "cudnn", "is_causal": True},
        {"implementation": "cudnn", "is_causal": True, "local_window_size": (3, 0)},
    ]
    with pytest.raises(Unavailable, match="not float32"):
        peers.cudnn(Causal(), 8)(wide, wide, wide)
    with pytest.raises(Unavailable, match="no argument"):
        peers.cudnn(Window(3, 3), 8)


@pytest.mark.slow
def test_bigbird_is_one_pattern_over_all_lengths():
    suite = suites()["bigbird"]
    assert suite.seen.static
    found = rows(suite, MODES[1], lengths=(512,), against=("torch",))
    assert found[0]["why"] == ""
    assert found[0]["error"] < 1
    assert all(not x["why"] or x["why"] == "skipped: torch is not installed" for x in found)
    shown = pairs(suite.seen, 512)
    assert shown == suite.seen.array(512, 512).sum()
    assert shown < 512**2
    assert pairs(suite.seen, 4096) / 4096 < 0.3 * 4096  # and it gets sparser


def test_what_takes_too_long_is_stopped():
    with pytest.raises(Unavailable, match=r"took over 0\.05 s"), torch_peers._limit(0.05):
        time.sleep(10)


def test_rows_say_what_ran():
    (row,) = rows(softmax(against={}), MODES[0])
    shape = row["dtype"], row["heads"], row["kv_heads"], row["width"], row["T"]
    assert shape == ("float32", 4, 2, 16, 32)
    assert row["implementation"] == "blockwise"
    assert row["error"] < 1
    work = 2 * 2 * (32 * 33 / 2) * 4 * 16
    assert row["work"] == work
    benchmark.share([row, {"why": "skipped"}], {"float32": 1e9})
    assert row["peak_share"] == pytest.approx(work / (row["minimum"] / 1e3) / 1e9)


def test_needed_work_is_what_the_mask_shows():
    assert pairs(Causal(), 700) == 700 * 701 / 2
    lengths = Causal() & Padding(np.array([300, 100]))
    assert pairs(lengths, 300) == (300 * 301 / 2 + 100 * 101 / 2 + 200 * 100) / 2
    halves = np.repeat([[0, 1]], 150, axis=1)
    assert pairs(Causal() & Segments(halves, halves), 300) == 2 * 150 * 151 / 2
    shape = cost.Shape(B=2, T=10, N=4, K=2, H=8)
    assert needed(shape, Causal(), MODES[1]) == 2 * 7 * 55 * 2 * 4 * 8


def test_work_in_visited_blocks_is_that_of_softmax_where_all_are_visited():
    """With backward it was that of the backward pass alone."""
    shape = cost.Shape(B=2, T=256, N=4, K=2, H=16)
    for mode in MODES:
        all_of = suites()["sparse"].contender(MECHANISMS["softmax"](), shape, [()], mode)
        assert all_of.work == needed(shape, FULL, mode)


def test_decoding_reads_a_cache_in_place():
    options = {"lengths": (64,), "heads": ((4, 2), (4, 1))}
    found = rows(dataclasses.replace(decoding.Decoding(), batch=2), **options)
    ours = [row for row in found if row["contender"] == "attn"]
    assert [row["kv_heads"] for row in ours] == [2, 1]
    for row in found:
        assert row["why"] in ("", "skipped: torch is not installed")
        assert row["contender"] == "copy" or row["why"] or row["copy_share"] > 0
    cache = 2 * 2 * 2 * 64 * 16 * 4
    assert ours[0]["bytes_per_second"] == pytest.approx(cache / (ours[0]["minimum"] / 1e3))
    # the cache is given and handed back, once
    assert ours[0]["peak_bytes"] - ours[0]["temporary_bytes"] < 1.3 * cache


def test_a_cache_too_small_for_the_rounds_is_refused():
    found = rows(decoding.Decoding(), lengths=(16,), against=("jax.nn",))
    assert found[0]["why"] == "skipped: 16 tokens do not fit a cache of 16"


@pytest.mark.slow
def test_masks_are_timed_together_with_plain_attention():
    found = rows(dataclasses.replace(suites()["masks"], modes=MODES[1:]))
    assert [row["contender"] for row in found] == [
        "plain", "padding", "segments", "ALiBi", "array bias", "sinks", "logit cap", "dropout",
    ]  # fmt: skip
    for row in found:
        assert not row["why"] or row["why"].startswith("skipped: dropout_rate"), row["why"]


@pytest.mark.slow
def test_two_devices_are_measured_in_a_process_of_their_own():
    found = rows(suites()["sharded"], against=())
    names = ["attn", "attn by heads", "attn on one device", "torch"]
    assert [row["contender"] for row in found] == names * 2
    for row in found:
        assert row["why"] in ("", "skipped: torch is not installed")


def test_what_two_devices_gave_before_their_process_ended_is_kept(monkeypatch, tmp_path):
    """Of one that the kernel killed after half an hour nothing was left."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[{\"T\": 32}]'\nprintf '[{\"T\": 6'\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (measured,), (failed,) = suites()["sharded"].rows(SMALL)
    assert measured == {"T": 32}
    assert failed["why"] == "failed: exit code 7, see above"


def test_the_memory_suite_runs_each_once():
    found = rows(suites()["memory"], against=("jax.nn",))
    assert [(row["mode"], row["rounds"]) for row in found] == [(MODES[1], 1)] * 2
    assert all(row["peak_bytes"] > row["temporary_bytes"] for row in found)


def test_the_machine_is_measured():
    assert 1e8 < machine.peak_flops(size=256, rounds=3) < 1e14
    copy = machine.Copy(2**10)
    copy.parts[0][0][:] = 0
    copy(0)
    assert copy.bytes == 2**11
    assert all((target == source).all() for target, source in copy.parts)


def test_a_gpu_is_measured_and_told_of(monkeypatch, tmp_path):
    import jax
    import jax.numpy as jnp

    monkeypatch.setattr(machine, "on_gpu", lambda: True)
    monkeypatch.setattr(machine, "DeviceCopy", functools.partial(machine.DeviceCopy, 2**12))
    assert machine.memory_bytes() > 2**28  # a CPU has no limit of its own
    assert machine.device()["device copy"].endswith("GB/s read and written")
    assert machine.copy().bytes == 2**13
    for dtype in ("float32", "bfloat16"):
        assert machine._device_flops(dtype, size=64, products=2) > 1e5
    peaks = {"float32": 5e13, "bfloat16": 7e14}
    assert machine.told(peaks) == "50000 GFLOP/s, float32, highest precision, " + (
        "700000 GFLOP/s, bfloat16"
    )
    assert [machine.peak_of(x, peaks) for x in ("float32", "float16")] == [5e13, 7e14]
    for dtype, said in (("float32", True), ("bfloat16", False)):
        with jax.default_matmul_precision("bfloat16"), machine.precision(dtype):
            program = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
        assert ("HIGHEST" in str(program)) == said
    environment = {"command": "c", "hardware": {"platform": "gpu"}}
    assert "enqueued one after another" in report_benchmark.markdown({}, environment)
    report_benchmark.write({}, environment, tmp_path)
    assert "enqueued one after another" in (tmp_path / "benchmark.html").read_text()


def test_on_a_cpu_nothing_is_said_of_devices():
    assert machine.device() == {}
    assert machine.told({"float32": 2e11}) == "200 GFLOP/s, float32, all cores"
    assert machine.peak_of("bfloat16", {"float32": 2e11}) == 2e11
    assert report_benchmark.notes({}) == report_benchmark.NOTES


@pytest.mark.slow
def test_the_command_writes_what_it_prints(tmp_path, capsys):
    arguments = [f"--workdir={tmp_path}", "--suite=softmax", "--lengths=16,32", "--rounds=3"]
    arguments += ["--dtypes=float32", "--heads=4/2", "--widths=16", "--against=jax.nn"]
    assert benchmark.main(arguments) == 0
    assert "attn / it" in capsys.readouterr().out
    found = json.loads((tmp_path / "benchmark.json").read_text())
    written = found["suites"]["softmax"]["rows"]
    assert [(r["T"], r["mode"]) for r in written[::2]] == [
        (T, mode) for T in (16, 32) for mode in MODES
    ]
    assert all(r["minimum"] <= r["median"] and r["peak_bytes"] > 0 for r in written)
    assert written[0]["flops"] == 2 * 2 * 16 * 16 * 4 * 16 * 2
    text = (tmp_path / "benchmark.html").read_text()
    assert text.count("<svg") == 4  # time and memory of two modes
    assert "http:" not in text
    assert "<dt>hardware.cores</dt>" in text
    markdown = (tmp_path / "benchmark.md").read_text()
    assert "#### T = 32, forward + backward, batch 2, float32, heads 4/2, width 16" in markdown
    assert found["environment"]["git"] in markdown
    assert "matrix product peak" in markdown
    # what is there is not lost to another suite
    assert benchmark.main([f"--workdir={tmp_path}", "--suite=window,decode"]) == 5
    assert "holds softmax, which this command does not measure" in capsys.readouterr().err
    assert json.loads((tmp_path / "benchmark.json").read_text()) == found
    benchmark._check(tmp_path, ["window", "softmax"])


def test_a_benchmark_that_is_stopped_loses_none_of_the_one_before(monkeypatch, tmp_path):
    """One key pressed in its first suite, and hours of the others' were gone."""

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "peaks", lambda: {"float32": 1e9})
    monkeypatch.setattr(benchmark, "run_suite", lambda *_: None)
    command = [f"--workdir={tmp_path}", "--suite=window,decode"]
    assert benchmark.main(command) == 0
    before = {kind: (tmp_path / f"benchmark.{kind}").read_bytes() for kind in ("json", "html")}
    monkeypatch.setattr(benchmark, "run_suite", stop)
    for _ in range(2):
        assert benchmark.main(command) == 130
    assert [*json.loads((tmp_path / "benchmark.json").read_text())["suites"]] == ["window"]
    for kind, content in before.items():
        assert (tmp_path / f"benchmark.1.{kind}").read_bytes() == content
    assert len([*tmp_path.glob("*.json")]) == 3


def test_a_benchmark_that_is_asked_to_end_writes_what_it_measured(monkeypatch, tmp_path, capsys):
    """SIGTERM lost all rows of its suite, which Ctrl-C does not."""

    def run(suite, options, console, peaks, rows):
        rows.append({"contender": "attn"})
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(machine, "peaks", lambda: {"float32": 1e9})
    monkeypatch.setattr(report_benchmark, "markdown", lambda *_: "")
    monkeypatch.setattr(report_benchmark, "_hypertext", lambda *_: "")
    monkeypatch.setattr(benchmark, "run_suite", run)
    assert benchmark.main([f"--workdir={tmp_path}", "--suite=window"]) == 143
    assert capsys.readouterr().err == "SIGTERM: stopped; what was measured is written\n"
    found = json.loads((tmp_path / "benchmark.json").read_text())
    assert found["suites"]["window"]["rows"] == [{"contender": "attn"}]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_benchmark_that_is_stopped_while_it_trains_does_not_speak_of_that_run(
    monkeypatch, tmp_path, capsys
):
    """It said that a step was saved, of a run whose folder it removes."""

    def measure(experiment, tell):
        raise Interrupted(signal.SIGTERM, "step 0 of 300 is saved")

    monkeypatch.setattr(machine, "peaks", lambda: {"float32": 1e9})
    monkeypatch.setattr(overhead, "measure", measure)
    assert benchmark.main([f"--workdir={tmp_path}", "--suite=loop"]) == 143
    assert capsys.readouterr().err == "SIGTERM: stopped; what was measured is written\n"


def test_two_benchmarks_in_one_directory_keep_apart(monkeypatch, tmp_path, capsys):
    command = [f"--workdir={tmp_path}", "--suite=window"]
    monkeypatch.setattr(machine, "peaks", lambda: {"float32": 1e9})
    monkeypatch.setattr(benchmark, "run_suite", lambda *_: again.append(benchmark.main(command)))
    again = []
    assert benchmark.main(command) == 0
    assert again == [5]
    assert "in use by a running process" in capsys.readouterr().err
    assert [x.name for x in tmp_path.glob("*.json")] == ["benchmark.json"]


@pytest.mark.parametrize("suites", ["5", "null", '"all"'])
def test_a_benchmark_that_was_edited_is_not_written_over(suites, tmp_path, capsys):
    (tmp_path / "benchmark.json").write_text(f'{{"suites": {suites}}}')
    assert benchmark.main([f"--workdir={tmp_path}", "--suite=window"]) == 5
    assert "benchmark.json is not as it was written" in capsys.readouterr().err


def test_mistakes_are_one_message_each(capsys):
    bad = ["--workdir=/tmp/x", "--suite=sofmax", "--lengths=0,a", "--against=jax", "--rounds=2"]
    bad += ["--dtypes=float33", "--heads=4,8/3", "--widths=-1", "--seconds=many"]
    assert benchmark.main(bad) == 2
    assert benchmark.main([]) == 2
    errors = capsys.readouterr().err
    assert "10 mistakes" in errors
    assert "did you mean 'softmax'?" in errors
    assert "did you mean 'jax.nn'?" in errors
    assert "did you mean 'float32'?" in errors
    assert "--heads=4: expected query heads / key heads, such as 8/2" in errors
    assert "--heads=8/3: 8 query heads are no multiple of 3 key heads" in errors
    assert "--rounds=2: expected a whole number in 3..10,000" in errors
    assert "--workdir: is required" in errors


def test_every_suite_says_what_ours_is():
    found = {name: suite.ours for name, suite in suites().items()}
    assert {*found.values()} <= {*MECHANISMS}
    assert (found["window"], found["linear"], found["content"]) == ("window", "linear", "reformer")


def test_no_suite_is_refused_before_anything_is_measured(tmp_path, capsys):
    assert benchmark.main([f"--workdir={tmp_path / 'new'}", "--suite="]) == 2
    assert "--suite: expected one or more of softmax,memory," in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_busy_machine_is_told_of_beside_a_commit_too(monkeypatch, tmp_path, capsys):
    """A ratio of 5 between equal code was shown as any other."""
    monkeypatch.setattr(benchmark.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(commits, "beside", lambda *_: {"here": {}, "there": {}})
    assert benchmark.main([f"--workdir={tmp_path}", "--against=HEAD", "--suite=softmax"]) == 0
    assert "the machine is busy (load 99.0" in capsys.readouterr().out


def test_a_commit_is_timed_beside_this_one(monkeypatch, tmp_path):
    ran = []

    def times(root, arguments, workdir):
        ran.append((root == provenance.ROOT, (root / "attn/__init__.py").exists(), arguments))
        key = ("softmax", "attn", "float32", 4, 4, 64, 512, "forward")
        return {key: 3.0 - len(ran) / 10 if root == provenance.ROOT else 2.0}

    monkeypatch.setattr(commits, "_times", times)
    monkeypatch.setattr(commits, "_python", lambda *_: json.dumps({"softmax": []}))
    found = commits.beside("HEAD", [], {"softmax": []}, tell=lambda line: None)
    assert [here for here, *_ in ran] == [True, False] * 2
    assert all(there for _, there, _ in ran)  # the commit's files were there
    (key,) = found["here"]
    assert found["here"][key] == pytest.approx([2.9, 2.7])
    assert found["there"][key] == [2.0, 2.0]
    text = io.StringIO()
    Console(file=text, width=200).print(commits.table(found, "HEAD"))
    # of the smallest, and of any two: a ratio alone did not say that equal code differs by as much
    assert "2.90, 2.70 │ 2.00, 2.00 │ 1.35 (1.35 to 1.45)" in text.getvalue()
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout
    assert "attn-" not in listed  # nothing is left behind


def test_all_of_ours_are_timed_beside_a_commit(monkeypatch, tmp_path):
    """Of `sparse` only window was shown, of `masks` and `loop` nothing, after minutes."""
    names = {
        "masks": ("plain", "padding"),
        "linearized": ("attn", "gla", "token scan", "fla linear"),
        "decode": ("attn", "jax.nn", "copy"),
    }
    row = lambda name: {"contender": name, "T": 512, "mode": "forward", "minimum": 2.0}
    found = {suite: {"rows": [*map(row, own)]} for suite, own in names.items()}
    found["loop"] = {"rows": [], "alone_ms": [3.0, 1.0], "loop_ms": [2.0, 4.0]}
    (tmp_path / "benchmark.json").write_text(json.dumps({"suites": found}))
    monkeypatch.setattr(commits, "_python", lambda *_: "")
    times = commits._times(provenance.ROOT, [], tmp_path)
    assert {key[:2]: x for key, x in times.items()} == {
        ("masks", "plain"): 2.0,
        ("masks", "padding"): 2.0,
        ("linearized", "attn"): 2.0,
        ("linearized", "gla"): 2.0,
        ("decode", "attn"): 2.0,
        ("loop", "alone"): 1.0,
        ("loop", "in the loop"): 2.0,
    }


def test_what_is_neither_peer_nor_commit_is_refused(capsys, tmp_path):
    assert benchmark.main(["--suite=softmax", "--against=torhc", f"--workdir={tmp_path}"]) == 2
    assert "did you mean 'torch'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="neither a peer nor a commit"), commits.checkout("nono"):
        pass


def test_a_peer_that_is_mistyped_is_named_where_there_is_no_git(monkeypatch, capsys, tmp_path):
    """It said "No such file or directory: 'git'" of a name that was meant for a peer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert benchmark.main(["--suite=softmax", "--against=torhc", f"--workdir={tmp_path}"]) == 2
    assert "did you mean 'torch'" in capsys.readouterr().err


def test_a_name_that_is_no_peer_is_told_what_is_expected(capsys, tmp_path):
    """Whatever it was, it was told "did you mean 'torch'?", which may not be installed."""
    assert benchmark.main(["--suite=content", "--against=nonsuch", f"--workdir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "--against=nonsuch: expected a peer (cudnn, fla, flax.linen, flax.nnx, " in error
    assert "or a name of a commit" in error
    assert "did you mean" not in error


def test_a_peer_that_no_suite_has_is_refused_before_anything_is_measured(capsys, tmp_path):
    arguments = ["--suite=content,sharded", "--against=torch,fla", f"--workdir={tmp_path / 'new'}"]
    assert benchmark.main(arguments) == 2
    error = capsys.readouterr().err
    assert "1 mistake:" in error
    assert "--against=fla: expected a peer of a suite that is measured (content has none; " in error
    assert "sharded has torch)" in error
    assert benchmark.main(["--suite=loop", "--against=fla", f"--workdir={tmp_path / 'new'}"]) == 2
    assert not (tmp_path / "new").exists()


def test_the_loop_alone_takes_no_flags_of_the_other_suites(capsys, tmp_path):
    """They were ignored."""
    new = tmp_path / "new"
    asked = ["--suite=loop", "--lengths=512", "--seconds=9", "--rounds=12", f"--workdir={new}"]
    assert benchmark.main(asked) == 2
    error = capsys.readouterr().err
    assert "2 mistakes" in error
    assert "--lengths: loop is of one setting; leave it out, or name another --suite too" in error
    assert "--seconds: loop is" in error
    assert not new.exists()


def test_a_commit_is_timed_with_peers_that_its_suites_have():
    values = flags.FlagValues()
    benchmark._define(values)
    values(["", "--workdir=x", "--suite=loop,content,linear", "--rounds=3"])
    arguments, peers = benchmark._asked(values, Options())
    assert peers == {"loop": [], "content": [], "linear": ["token scan", "fla"]}
    assert "--rounds=3" in arguments
    assert benchmark._asked(values, Options(against=("fla",)))[1]["linear"] == ["fla"]


def test_what_git_says_against_a_checkout_is_told(monkeypatch, tmp_path):
    """It was a traceback with git's command and without its words."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    for command in (["init"], ["commit", "--allow-empty", "--message=x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (tmp_path / ".git" / "worktrees").touch()  # as where it may not be written to
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    with (
        pytest.raises(LabError, match="--against=HEAD: git cannot check it out: fatal"),
        commits.checkout("HEAD"),
    ):
        raise AssertionError


def test_a_checkout_is_gone_after_sigterm_as_after_ctrl_c():
    """Git went on listing its folder, and the benchmark in it ran on."""
    folders = []

    def stopped():
        with commits.checkout("HEAD") as folder:
            folders.append(str(folder))
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)

    with pytest.raises(Interrupted) as error:
        stopped()
    assert error.value.code == 143
    listed = subprocess.run(
        ["git", "-C", str(provenance.ROOT), "worktree", "list"], capture_output=True, text=True
    )
    assert folders[0] not in listed.stdout
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_commit_is_timed_by_the_suites_and_peers_that_both_have(monkeypatch):
    """It was asked for suites that it had not yet, or had under another name, and failed."""
    ran, told = [], []
    theirs = {"softmax": ["torch", "old peer"], "window": ["old peer"], "loop": []}
    monkeypatch.setattr(commits, "_python", lambda *_: json.dumps(theirs))
    monkeypatch.setattr(commits, "_times", lambda root, arguments, out: ran.append(arguments) or {})
    ours = {"softmax": ["new peer", "torch"], "new": ["torch"], "newer": [], "window": ["torch"]}
    commits.beside("HEAD", ["--rounds=3"], ours, tell=told.append)
    assert ran == [["--rounds=3", "--suite=softmax,window", "--against=torch"]] * 4
    assert told[0] == "HEAD has no new, newer: left out"
    with pytest.raises(ConfigError, match="no suite of that commit is called new"):
        commits.beside("HEAD", [], {"new": []}, tell=told.append)


def test_a_commit_without_suites_is_not_timed_by_those_of_another(monkeypatch, tmp_path):
    """Python took the package that is installed, beside that commit's attn."""
    monkeypatch.setattr(commits, "checkout", lambda ref: contextlib.nullcontext(tmp_path))
    with pytest.raises(ConfigError, match="--against=old: that commit has no suites to time"):
        commits.beside("old", [], {"softmax": []}, tell=lambda line: None)


@pytest.mark.slow
def test_a_checkout_says_which_suites_it_has():
    found = json.loads(commits._python(provenance.ROOT, "-c", commits.ASKED))
    assert found == {n: [*x.against] for n, x in suites().items()} | {"loop": []}


@pytest.mark.slow
def test_the_processes_of_a_commit_run_and_are_read():
    arguments = ["--suite=softmax", "--lengths=32", "--dtypes=float32", "--heads=1/1"]
    arguments += ["--widths=8", "--rounds=3", "--seconds=1", "--against=jax.nn"]
    with tempfile.TemporaryDirectory() as out:
        found = commits._times(provenance.ROOT, arguments, Path(out) / "x")
    assert {key[-1] for key in found} == set(MODES)
    assert all(x > 0 for x in found.values())
