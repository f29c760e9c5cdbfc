"""A checkpoint is used as it was written, or not at all."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import manifest
from experiments.checkpoint import Checkpoints, flatten
from experiments.errors import CheckpointError


def make(directory: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(directory=directory, config="c", data="d", keep=keep)


def state(step: int) -> dict:
    return {"step": jnp.int32(step), "w": [jnp.arange(6.0) + step, jnp.full((2, 3), 0.1)]}


@pytest.fixture
def three(tmp_path: Path) -> Checkpoints:
    checkpoints = make(tmp_path / "run")
    for step in (1, 2, 3):
        checkpoints.save(step, state(step), progress={"at": step}, best=1)
    return checkpoints


def test_restored_is_equal_bit_by_bit(three: Checkpoints):
    restored, progress = three.restore(state(0))
    assert progress == {"at": 3}
    assert jax.tree.structure(restored) == jax.tree.structure(state(0))
    for a, b in zip(flatten(restored).values(), flatten(state(3)).values(), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


def test_the_latest_and_their_best_are_kept(three: Checkpoints):
    three.save(4, state(4), progress={}, best=1)
    assert sorted(three.steps()) == [1, 3, 4]
    three.save(5, state(5), progress={}, best=5)
    assert sorted(three.steps()) == [1, 4, 5]
    assert three.best() == 5
    # Going on from 4 would still need 1.
    harm(files(three.directory / "5")[0], "flip")
    assert three.restore(state(0))[1] == {}
    assert sorted(three.steps()) == [1, 4]


def test_none_is_not_an_error(tmp_path: Path):
    assert make(tmp_path / "none").restore(state(0)) is None


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def harm(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_harm_to_any_file_is_noticed_and_the_last_good_one_used(
    how: str, three: Checkpoints, tmp_path: Path
):
    newest = three.directory / "3"
    for name in [p.relative_to(newest) for p in files(newest) if p.stat().st_size]:
        copy = tmp_path / "copy" / str(name).replace("/", "_")
        shutil.copytree(three.directory, copy)
        harm(copy / "3" / name, how)
        said = []
        restored, progress = make(copy).restore(state(0), tell=said.append)
        assert (int(restored["step"]), progress) == (2, {"at": 2}), name
        assert "checkpoint 3" in said[0]
        assert "damaged" in said[0]
        assert (copy / "damaged-3").is_dir()
        assert sorted(make(copy).steps()) == [1, 2]


def test_without_a_good_one_nothing_is_started_over(three: Checkpoints):
    for step in three.steps():
        harm(files(three.directory / str(step))[-1], "flip")
    with pytest.raises(CheckpointError, match="no good checkpoint is left") as error:
        three.restore(state(0))
    assert error.value.code == 4
    assert sorted(three.steps()) == [1, 2, 3]


def test_one_whose_best_is_damaged_is_not_good(three: Checkpoints):
    harm(three.directory / "1" / manifest.NAME, "flip")
    with pytest.raises(CheckpointError):
        three.restore(state(0))


def test_a_save_that_was_cut_off_is_no_checkpoint(three: Checkpoints, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(CheckpointError, match=r"could not be saved .* disk full"):
            three.save(4, state(4), progress={}, best=1)
    assert sorted(three.steps()) == [1, 2, 3]
    three.save(4, state(4), progress={}, best=1)
    assert int(three.restore(state(0))[0]["step"]) == 4


def test_other_shapes_and_dtypes_are_listed_and_never_cast(three: Checkpoints):
    other = {"step": jnp.int32(0), "w": [jnp.zeros(6, jnp.float16), jnp.zeros((3, 3))]}
    with pytest.raises(CheckpointError) as error:
        three.restore(other)
    assert "w.0: float32[6] there, float16[6] here" in str(error.value)
    assert "w.1: float32[2, 3] there, float32[3, 3] here" in str(error.value)


@pytest.mark.parametrize("field", ["config", "data"])
def test_another_runs_checkpoint_is_refused(field: str, three: Checkpoints):
    kwargs = {"config": "c", "data": "d", field: "other"}
    other = Checkpoints(directory=three.directory, keep=2, **kwargs)
    with pytest.raises(CheckpointError, match=f"has other {field}"):
        other.restore(state(0))


def test_the_manifest_says_what_is_there(three: Checkpoints):
    body = json.loads((three.directory / "3" / manifest.NAME).read_text())["body"]
    assert body["arrays"]["w.1"] == {"shape": [2, 3], "dtype": "float32"}
    assert {"step", "config", "data", "best", "files"} <= body.keys()
