"""The picture of an alignment: of a trained run, with its characters, and clear words without."""

import shlex
import types

import numpy as np
import pytest

from experiments import align, evaluate, train, visualize
from experiments.config import task
from experiments.validation import from_dict


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "of bahdanau"
    experiment = from_dict(
        {
            "task": task("numbers", digits=3, validation=8, test=8),
            "model": {"family": "bahdanau", "width": 4},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"steps": 1, "batch_size": 2, "eval_batch_size": 8},
        }
    )
    train.run(experiment, folder, progress=False)
    return folder


@pytest.mark.slow
def test_a_run_is_drawn_with_its_characters(trained, capsys):
    assert align.main([f"--workdir={trained}", "--example=3"]) == 0
    out = capsys.readouterr().out
    seen = align.look(trained, 3)
    (alignment,) = seen.maps.values()
    assert alignment.shape == (len(seen.written), len(seen.source))
    np.testing.assert_allclose(alignment.sum(1), 1, atol=1e-5)
    assert " ".join(seen.source) in out
    assert seen.wanted[-1] == "end"
    assert (trained / "alignment.png").read_bytes().startswith(b"\x89PNG")
    assert (trained / "alignment.svg").read_text().startswith('<svg xmlns="http')
    assert align.main([f"--workdir={trained}", "--example=8"]) == 2
    assert align.main([f"--workdir={trained}", "--example=-1"]) == 2
    assert visualize.main([f"--workdir={trained}"]) == 2
    errors = capsys.readouterr().err
    assert "validation has examples 0..7" in errors
    assert shlex.split(errors)[-4:] == ["python", "-m", "experiments.align", f"--workdir={trained}"]


def test_a_task_that_names_no_characters_is_refused(monkeypatch, capsys):
    """A task of the user's own may be none of ours of sequences: its run ended in a traceback."""
    posed = types.SimpleNamespace(head="sequence")
    learner = types.SimpleNamespace(experiment=types.SimpleNamespace(posed=posed))
    monkeypatch.setattr(evaluate, "load", lambda workdir: (learner, None, 0))
    assert align.main(["--workdir=mine"]) == 2
    wrong = "its task: expected a Translation (experiments.tasks.sequence), which names its"
    assert wrong in capsys.readouterr().err


def test_pictures_lie_side_by_side():
    maps = {f"head {n}": np.eye(2, 3) for n in range(5)}
    drawing = align.draw(align.Alignment(maps, ["a", " ", "b"], ["7", "end"], ["7", "end"]))
    assert all(title in drawing.svg for title in maps)
    assert drawing.png.startswith(b"\x89PNG")


@pytest.mark.slow
def test_another_head_is_told_which_command_draws_it(whole, capsys):
    # the hint came out as "'token': [redacted] -m experiments.visualize"
    assert align.main([f"--workdir={whole}"]) == 2
    hint = f"head 'token'; draw it with python -m experiments.visualize --workdir={whole}\n"
    assert capsys.readouterr().err.endswith(hint)


@pytest.mark.slow
def test_a_command_that_is_told_can_be_copied_into_a_shell(whole, tmp_path, capsys):
    """Of a folder with a space in its name it named the half before."""
    (spaced := tmp_path / "a run").symlink_to(whole)
    assert align.main([f"--workdir={spaced}"]) == 2
    assert shlex.split(capsys.readouterr().err)[-1] == f"--workdir={spaced}"


def test_what_is_no_trained_run_is_refused(tmp_path, capsys):
    assert align.main([f"--workdir={tmp_path / 'none'}"]) == 2
    assert align.main([f"--workdir={tmp_path}"]) == 5
    errors = capsys.readouterr().err
    assert "no such folder" in errors
    assert "no run directory" in errors
