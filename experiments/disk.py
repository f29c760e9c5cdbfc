"""Files and folders written whole or not at all, and on the disk once these functions return."""

import contextlib
import errno
import glob
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Writes all of it or nothing, whenever the process is killed or the power fails."""
    write_text(path, as_json(value))


def write_text(path: Path, text: str) -> None:
    """Writes text as `write_bytes` does; a path that is not UTF-8, which an error may name, as
    Python escapes it."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes all of it or leaves what was there, whenever the process is killed or power fails."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a full disk does not say where
        error.filename = error.filename or str(path)
        with contextlib.suppress(OSError):
            partial.unlink()  # else it keeps the room that is missing
        raise
    partial.replace(path)
    sync(path.parent)


def no_pipe(path: Path) -> Path:
    """The path of a file to be read. Raises OSError for a pipe, which would be waited for."""
    if path.is_fifo():
        raise OSError(errno.EINVAL, "expected a file, got a pipe", str(path))
    return path


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def is_full(error: Exception) -> bool:
    """Whether the error is of a full disk or quota: told by its text, as Orbax's errors have no
    number."""
    return any(os.strerror(x) in str(error) for x in (errno.ENOSPC, errno.EDQUOT))


def make(folder: Path) -> None:
    """Makes the folder, and those above it that are missing. Raises NotADirectoryError where a file
    or a link that leads to no folder has its name, as a link to a disk that is not mounted does."""
    if not folder.is_dir():
        make(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            link = folder.is_symlink()
            got = f"a link to {folder.readlink()}, which is none" if link else "a file"
            what = f"expected a folder, got {got}"
            raise NotADirectoryError(errno.ENOTDIR, what, str(folder)) from None
        sync(folder.parent)


def sync(path: Path) -> None:
    """Waits until a folder's list of names is on the disk, where its file system has a call for
    that: folders shared with a virtual machine and some network drives have none."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def literal(path: Path) -> Iterator[Path]:
    """The path, by a link without [, for libraries that read [ as a pattern, as Orbax does."""
    path = path.absolute()
    if glob.escape(str(path)) == str(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(path.parent)
        yield link / path.name
