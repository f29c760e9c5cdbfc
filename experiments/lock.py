"""One writer per directory: a lock that the system releases however the process ends."""

import contextlib
import dataclasses
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from experiments import disk
from experiments.errors import InUseError, RunDirectoryError

LOCK = "lock"


@dataclasses.dataclass(frozen=True)
class Held:
    """A lock that is held."""

    file: TextIO
    path: Path

    def check(self) -> None:
        """Raises RunDirectoryError if the directory or the lock was replaced or removed: whoever
        holds the new one may be writing too."""
        try:
            same = os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except OSError:
            same = False
        if not same:
            what = "it or its lock was removed or replaced while this process held it"
            raise RunDirectoryError(f"{self.path.parent} cannot be written to: {what}")


@contextlib.contextmanager
def held(workdir: Path, name: str = LOCK) -> Iterator[Held]:
    """Makes the directory and holds its lock `name`. Raises InUseError naming the process that
    holds it already, RunDirectoryError if it cannot be made or locked."""
    if what := _unwritable(str(workdir.absolute())):  # now, and not at the first checkpoint
        raise RunDirectoryError(f"{workdir.absolute()}: {what}; give another --workdir")
    try:
        if workdir.exists() and not workdir.is_dir():
            raise RunDirectoryError(f"{workdir} is a file; give another --workdir")
        disk.make(workdir)
        lock = (workdir / name).open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunDirectoryError(f"{workdir} cannot be written to: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            message = f"{workdir} is in use by a running process ({holder})"
            raise InUseError(message) from None
        except OSError as error:  # as of some network file systems
            where = "give a --workdir on another file system"
            raise RunDirectoryError(f"{workdir} cannot be locked: {error}; {where}") from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        mine = Held(lock, workdir / name)
        mine.check()  # between opening and locking it
        yield mine


def _unwritable(path: str) -> str:
    """Why TensorStore cannot write there."""
    if "\\" in path:
        return "expected a path without a backslash, which TensorStore takes for a slash"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "expected a path in UTF-8, the only one that TensorStore takes"
    return ""


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Waits for other writers there: by a lock of the folder itself, which may have any name and
    gets no additional file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without such locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held_soon(workdir: Path, name: str = LOCK, seconds: float = 10) -> Iterator[None]:
    """`held`, but waits for a process that holds it only for a moment."""
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held(workdir, name))
                break
            except InUseError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield
