"""Bytes: windows of a text, each byte labelled with the next; paths that will not do."""

import errno
import math
import os

import numpy as np
import pytest

from experiments.errors import DataError
from experiments.tasks import Bytes

TEXT = bytes(np.random.default_rng(0).integers(0, 256, 4001, np.uint8))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text").write_bytes(TEXT)
    return str(tmp_path / "text")


def test_held_out_windows_are_the_text_in_order(path):
    task = Bytes(length=7, path=path)
    for split, share in (("validation", TEXT[3600:3800]), ("test", TEXT[3800:])):
        batches = list(task.evaluation(split, 8))
        real = np.concatenate([b.weights for b in batches])[:, 0] > 0
        tokens = np.concatenate([b.tokens for b in batches])[real] - 1
        labels = np.concatenate([b.labels for b in batches])[real]
        whole = len(tokens) * 7
        assert len(share) - 7 <= whole < len(share)
        assert bytes(tokens.astype(np.uint8).ravel()) == share[:whole]
        assert bytes(labels.astype(np.uint8).ravel()) == share[1 : whole + 1]


def test_training_windows_lie_in_the_first_nine_tenths(path):
    task = Bytes(length=7, path=path)
    batch = task.batch(0, 3, 300)
    rows = {bytes((row - 1).astype(np.uint8)) for row in batch.tokens}
    assert len(rows) > 250
    assert all(row in TEXT[:3600] for row in rows)
    np.testing.assert_array_equal(batch.labels[:, :-1] + 1, batch.tokens[:, 1:])


def test_a_folder_is_its_files_in_order(tmp_path, path):
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "x").write_bytes(TEXT[2000:])
    (folder / "a").write_bytes(TEXT[:1999])
    whole = tmp_path / "whole"
    whole.write_bytes(TEXT[:1999] + b"\n" + TEXT[2000:])
    one, two = Bytes(length=7, path=str(folder)), Bytes(length=7, path=str(whole))
    assert one.fingerprint() == two.fingerprint() != Bytes(length=7, path=path).fingerprint()


def test_a_folder_that_is_not_all_there_is_refused(tmp_path, monkeypatch):
    """What could not be read was left out without a word: the rest was another text."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(TEXT)
    (tmp_path / "a").symlink_to(tmp_path / "moved")
    task = Bytes(length=7, path=str(tmp_path))
    with pytest.raises(DataError, match=r"^task.path: expected text that can be read: .*/a'$"):
        task.content()
    (tmp_path / "a").unlink()
    scandir = os.scandir

    def refusing(path):  # as for who may not read it, which root may
        if str(path) == str(tmp_path / "b"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"^task.path: expected text .* Permission denied: .*/b'$"):
        task.content()


def test_baselines_count_bytes_and_pairs(tmp_path):
    (tmp_path / "ab").write_bytes(b"aab" * 400)
    found = Bytes(length=5, path=str(tmp_path / "ab")).baselines()
    assert found["most frequent byte"] == pytest.approx(2 / 3, abs=0.02)
    # after b comes a; after a as often a as b, where the smaller byte is taken: right 2 times of 3
    assert found["most frequent after the last"] == pytest.approx(2 / 3, abs=0.02)


def test_loss_in_bits():
    assert Bytes().measures(math.log(256)) == {"bits_per_byte": pytest.approx(8)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: Bytes(path=str(p / "none")),
            "^task.path: expected a file or a folder of text",
        ),
        (lambda p: Bytes(path=str(p)), "^task.path: expected files in the folder"),
        (lambda p: Bytes(length=0), "length: expected an integer in 1"),
        (lambda p: Bytes(path=3), "path: expected a file, a folder or ''"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, make, message):
    with pytest.raises((ValueError, DataError), match=message):
        make(tmp_path).batch(0, 0, 1)


def test_too_short_a_text_is_named(path):
    with pytest.raises(DataError, match=r"text: expected at least 6,020 bytes"):
        Bytes(length=300, path=path).batch(0, 0, 1)
