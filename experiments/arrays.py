"""Arrays from .npz files, whose headers are trusted only as far as the file has bytes."""

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from experiments.disk import no_pipe
from experiments.errors import DataError

PACKED = 1032  # bytes that deflate can make of one, at most
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name. Raises DataError naming the file, before allocating more than its bytes
    can fill; never unpickles."""
    found = {}
    try:
        most = PACKED * path.stat().st_size
        with zipfile.ZipFile(no_pipe(path)) as archive:
            for member in archive.infolist():
                if member.file_size > most:
                    what = f"{member.file_size:,} bytes, expected at most {most:,}"
                    raise ValueError(f"{member.filename} claims {what}")
                with archive.open(member) as file:
                    found[member.filename.removesuffix(".npy")] = _array(file, member.file_size)
    except Exception as error:  # zipfile's, zlib's, and those of Python's parser for odd headers
        raise DataError(f"{path}: expected arrays as numpy.savez writes them: {error}") from error
    return found


def _array(file: IO[bytes], size: int) -> np.ndarray:
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"expected {file.name} of version 1 or 2, got {version}")
    shape, fortran, dtype = HEADERS[version](file)
    held, claimed = size - file.tell(), math.prod(shape) * dtype.itemsize
    if dtype.hasobject or claimed != held:
        what = f"{dtype}{list(shape)} of {claimed:,} bytes, the file holds {held:,}"
        raise ValueError(f"{file.name} claims {what}")
    return np.ndarray(shape, dtype, file.read(), order="F" if fortran else "C")
