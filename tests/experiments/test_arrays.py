"""What a file of arrays claims is not believed beyond what its bytes can hold."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments.arrays import read_npz
from experiments.errors import DataError
from experiments.report.sight import FILE, Sight

ARRAYS = {
    "rows": np.arange(6, dtype=np.float16).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "none": np.zeros((0, 3)),
    "about": np.array('"words"'),
}


def header(shape: str, descr: str = "'<f8'") -> bytes:
    """Of a .npy file of version 1, whatever it claims."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


ODD = {  # what Python and NumPy raise on these are seven kinds of errors
    "no end": ("(3,", "'<f8'"),
    "a bracket": ("(3,)]", "'<f8'"),
    "an indent": ("(3,)\n  x", "'<f8'"),
    "a number for a type": ("(3,)", "5"),
    "a list for a type": ("(3,)", "[[]]"),
    "beyond 64 bits": (f"({10**30},)", "'<f8'"),
    "a fraction": ("(1.5,)", "'<f8'"),
    "nested": ("(" * 210 + ")" * 210, "'<f8'"),
}


def packed(path: Path, content: bytes, *, size: int | None = None) -> Path:
    """An archive with one array, said to have that many bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("field.npy", content)
        if size is not None:
            archive.filelist[0].file_size = size
    return path


def test_what_numpy_writes_is_read(tmp_path: Path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **ARRAYS)
        found = read_npz(tmp_path / "a.npz")
        assert list(found) == list(ARRAYS)
        for name, expected in ARRAYS.items():
            assert found[name].dtype == expected.dtype
            np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    ("content", "size", "message"),
    [
        (header("(1000000000000,)") + bytes(16), None, "8,000,000,000,000 bytes, .* holds 16"),
        # the archive tells the same tale
        (header("(1000000000000,)"), 8 * 10**12 + 64, "claims 8,0.* bytes, expected at most"),
        (header("(3,)") + bytes(16), None, r"float64\[3\] of 24 bytes, the file holds 16"),
        (header("(-1, -2)") + bytes(16), None, "negative"),
        (header("(1,)", "'|O'") + bytes(8), None, r"field.npy claims object\[1\]"),
        (b"\x93NUMPY\x09\x00" + bytes(90), None, r"version 1 or 2, got \(9, 0\)"),
        (b"words", None, "expected arrays"),
        (header("(3,)")[:20], None, "expected arrays"),
        *[(header(shape, descr), None, "expected arrays") for shape, descr in ODD.values()],
    ],
    ids=["large", "larger", "short", "negative", "objects", "version", "words", "cut", *ODD],
)
def test_a_header_that_claims_what_is_not_there_is_refused_by_name(
    content: bytes, size: int | None, message: str, tmp_path: Path
):
    path = packed(tmp_path / "seen.npz", content, size=size)
    assert path.stat().st_size < 1000
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"seen\.npz: .*{message}") as error:
        read_npz(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.code == 4
    assert most < 1e6


@pytest.mark.parametrize(
    "wrong",
    [
        {"field": np.zeros(3)},
        {"field": np.array("words")},
        {"layer0": np.zeros((2, 2, 2))},
        {"about": np.array("[" * 100_000)},
        {"errors": np.array("5")},
        {"errors": np.array('["words"]')},
        {"errors": np.array("[[1]]")},
    ],
    ids=str,
)
def test_a_sight_that_is_none_is_not_shown(wrong: dict, tmp_path: Path):
    good = {"field": np.zeros((2, 2)), "layer0": np.zeros((2, 2)), "about": np.array('"a"')}
    np.savez(tmp_path / FILE, **good)
    assert Sight.load(tmp_path).about == "a"
    np.savez(tmp_path / FILE, **good | wrong)
    assert Sight.load(tmp_path) is None


def test_a_file_that_is_cut_flipped_or_no_archive_is_refused_by_name(tmp_path: Path):
    whole = io.BytesIO()
    np.savez_compressed(whole, field=np.arange(1000.0))
    whole = whole.getvalue()
    flipped = whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]
    for content in (b"", b"words", whole[: len(whole) // 2], flipped):
        (tmp_path / "seen.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"seen\.npz"):
            read_npz(tmp_path / "seen.npz")
