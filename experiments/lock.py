"""One writer a directory: a lock that the system lets go when the process ends, however it ends."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import RunDirectoryError

LOCK = "lock"


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
    """Makes the directory and holds it. Raises RunDirectoryError naming who does already."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"{workdir} cannot be written to: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            message = f"{workdir} is in use by a running process ({holder})"
            raise RunDirectoryError(message) from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield
