"""A checkpoint is used as it was written, or not at all."""

import dataclasses
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from full_disk import full_disk

from experiments import checkpoint, manifest
from experiments.checkpoint import Checkpoints, flatten
from experiments.errors import CheckpointError, NonFiniteError


def make(directory: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(directory=directory, config={"model": {"width": 8}}, data="d", keep=keep)


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


@pytest.mark.parametrize("name", ["runs[1]", "[a-z]*?", "r*n"])
def test_a_folder_whose_name_is_a_pattern_is_one(name: str, tmp_path: Path):
    """Below one with a [ all was trained, and then no checkpoint could be loaded."""
    checkpoints = make(tmp_path / name / "run")
    checkpoints.save(1, state(1), progress={}, best=1)
    restored, _ = checkpoints.restore(state(0))
    assert np.array_equal(restored["w"][0], state(1)["w"][0])
    assert [path.name for path in tmp_path.iterdir()] == [name]


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


def test_the_best_is_loaded_though_training_replaces_it_meanwhile(tmp_path: Path, monkeypatch):
    """It was said to be damaged, as its files were gone."""
    checkpoints = make(tmp_path, keep=1)
    checkpoints.save(1, state(1), progress={}, best=1)
    load = Checkpoints.load

    def slow(self, step, like):
        if step == 1:
            checkpoints.save(2, state(2), progress={}, best=2)
        return load(self, step, like)

    monkeypatch.setattr(Checkpoints, "load", slow)
    found, step = checkpoints.load_best(state(0))
    assert (int(found["step"]), step, checkpoints.steps()) == (2, 2, [2])
    # whose best was taken away, and no other has come
    checkpoints.save(3, state(3), progress={}, best=2)
    shutil.rmtree(tmp_path / "2")
    with pytest.raises(CheckpointError, match=r"checkpoint 2 in .* is damaged"):
        checkpoints.load_best(state(0))


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


def harms(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """What may become of a file: another byte, a shorter one, a longer one, none."""
    size = len(content)
    for at in sorted({0, 1, size // 3, size // 2, size - 2, size - 1} & {*range(size)}):
        for mask in (1, 0x80):
            changed = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            yield f"byte {at} ^ {mask}", changed
        yield f"cut to {at}", content[:at]
    yield "longer", content + b"\0"
    yield "deleted", None


def test_no_harm_to_any_file_is_accepted(tmp_path: Path):
    checkpoints = make(tmp_path)
    checkpoints.save(7, state(7), progress={"at": 7}, best=7)
    folder, cells = tmp_path / "7", 0
    for path in files(folder):
        content = path.read_bytes()
        for what, changed in harms(content):
            path.unlink()
            if changed is not None:
                path.write_bytes(changed)
            cells += 1
            # as the newest and only one, by its step, and as the best
            with pytest.raises(CheckpointError, match="no good checkpoint is left") as error:
                checkpoints.restore(state(0))
            assert path.name in str(error.value), what
            with pytest.raises(CheckpointError, match="damaged"):
                checkpoints.load(7, state(0))
            with pytest.raises(CheckpointError):
                checkpoints.best()
            path.write_bytes(content)
    assert checkpoints.restore(state(0))[1] == {"at": 7}
    print(f"{cells} cells, {len(files(folder))} files")
    assert cells > 15 * len(files(folder)) - 40


def test_a_checkpoint_under_another_name_is_not_that_one(three: Checkpoints):
    # older parameters taken for newer ones, every byte of them as it was written
    shutil.copytree(three.directory / "2", three.directory / "9")
    said = []
    assert three.restore(state(0), tell=said.append)[1] == {"at": 3}
    assert "checkpoint 9" in said[0]
    assert "it holds step 2" in said[0]


def test_what_is_not_finite_is_never_published(three: Checkpoints):
    bad = state(4)
    bad["w"][1] = bad["w"][1].at[1, 2].set(jnp.inf)
    with pytest.raises(NonFiniteError, match=r"checkpoint 4 is not written: w\.1 is not finite"):
        three.save(4, bad, progress={}, best=1)
    assert sorted(p.name for p in three.directory.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_harm_to_any_file_is_noticed_and_the_last_good_one_used(
    how: str, three: Checkpoints, tmp_path: Path
):
    newest = three.directory / "3"
    for name in [p.relative_to(newest) for p in files(newest) if p.stat().st_size][::4]:
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


def test_what_cannot_be_read_is_damaged_too(three: Checkpoints, monkeypatch):
    """A bad sector in the newest ended the run, and each that was to go on from it."""
    digest = manifest.hashlib.file_digest

    def read(file, kind):
        if Path(file.name).is_relative_to(three.directory / "3"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return digest(file, kind)

    monkeypatch.setattr(manifest.hashlib, "file_digest", read)
    said = []
    assert three.restore(state(0), tell=said.append)[1] == {"at": 2}
    assert "cannot be read: [Errno 5] Input/output error; going on from step 2" in said[0]


def test_a_file_system_that_syncs_no_folders_is_written_to(tmp_path: Path, monkeypatch):
    """Every command ended there with "Invalid argument", as fsync of /proc does."""
    sync = os.fsync

    def files_alone(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(handle)

    monkeypatch.setattr(os, "fsync", files_alone)
    checkpoints = make(tmp_path / "run")
    checkpoints.save(1, state(1), progress={}, best=1)
    assert checkpoints.best() == 1


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
    # and is not in the way of the next
    assert sorted(p.name for p in three.directory.iterdir()) == ["1", "2", "3"]
    three.save(4, state(4), progress={}, best=1)
    assert int(three.restore(state(0))[0]["step"]) == 4


def test_what_a_kill_left_of_the_last_save_goes_when_it_is_gone_on_from(three: Checkpoints):
    (three.directory / "partial-2-removed").mkdir()
    assert int(three.restore(state(0))[0]["step"]) == 3
    assert sorted(p.name for p in three.directory.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("size", [0, 100, 600])
def test_a_full_disk_is_one_clear_error_and_leaves_the_earlier_ones(size: int, three: Checkpoints):
    # nothing can be written; the arrays cannot; the manifest cannot
    with full_disk(size), pytest.raises(CheckpointError, match=r"checkpoint 4 could not be saved"):
        three.save(4, state(4), progress={}, best=1)
    assert sorted(three.steps()) == [1, 2, 3]
    assert three.restore(state(0))[1] == {"at": 3}
    # Orbax's other threads may still have made a folder, which the next save removes
    assert all(p.name.isdecimal() or p.name.startswith("partial-4") for p in names(three))
    three.save(4, state(4), progress={"at": 4}, best=1)
    assert sorted(p.name for p in names(three)) == ["1", "3", "4"]
    assert three.restore(state(0))[1] == {"at": 4}


def names(checkpoints: Checkpoints) -> list[Path]:
    return list(checkpoints.directory.iterdir())


def test_any_error_of_orbax_is_one_clear_error(three: Checkpoints, monkeypatch):
    def fail(*_):
        raise RuntimeError("not UTF-8")  # as tensorstore does for such a path

    monkeypatch.setattr(checkpoint.ocp, "save", fail)
    monkeypatch.setattr(checkpoint.ocp, "load", fail)
    with pytest.raises(CheckpointError, match=r"checkpoint 4 could not be saved .*: not UTF-8"):
        three.save(4, state(4), progress={}, best=1)
    assert sorted(three.steps()) == [1, 2, 3]
    with pytest.raises(CheckpointError, match=r"checkpoint 3 .* could not be loaded: not UTF-8"):
        three.restore(state(0))


def test_other_shapes_and_dtypes_are_listed_and_never_cast(three: Checkpoints):
    other = {"step": jnp.int32(0), "w": [jnp.zeros(6, jnp.float16), jnp.zeros((3, 3))]}
    with pytest.raises(CheckpointError) as error:
        three.restore(other)
    assert "w.0: float32[6] there, float16[6] here" in str(error.value)
    assert "w.1: float32[2, 3] there, float32[3, 3] here" in str(error.value)


def test_another_runs_checkpoint_is_refused_by_what_differs(three: Checkpoints):
    wider = dataclasses.replace(three, config={"model": {"width": 8, "dropout": 0.1}})
    with pytest.raises(CheckpointError, match=r"model\.dropout: nothing there, 0\.1 here"):
        wider.restore(state(0))
    with pytest.raises(CheckpointError, match="is of other data: d, not e"):
        dataclasses.replace(three, data="e").restore(state(0))


def test_the_manifest_says_what_is_there(three: Checkpoints):
    body = json.loads((three.directory / "3" / manifest.NAME).read_text())["body"]
    assert body["arrays"]["w.1"] == {"shape": [2, 3], "dtype": "float32"}
    assert body["settings"] == three.config
    assert manifest.digest(three.config).startswith(body["config"])
    assert {"step", "data", "best", "files"} <= body.keys()
