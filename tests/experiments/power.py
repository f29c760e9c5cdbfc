"""What a folder may be if the machine stops at any call that changes it.

A process that is killed leaves what it wrote. A power failure leaves what was synced (fsync of a
file keeps its bytes, of a folder its names), and of all else anything: here all, nothing, only the
names, only the bytes, and mixtures, in which a file may also be half as long.
"""

import dataclasses
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

CALLS = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "fsync")
Tree = dict[str, "bytes | Tree"]


@dataclasses.dataclass(frozen=True)
class View:
    """Folders as names and inodes, files as bytes, each by its own inode."""

    names: dict[int, dict[str, int]] = dataclasses.field(default_factory=dict)
    bytes: dict[int, bytes] = dataclasses.field(default_factory=dict)
    held: dict[int, int] = dataclasses.field(default_factory=dict)  # open, or one is used again

    def look(self, path: Path) -> int:
        """Takes in all that is there now; the inode of the path."""
        handle = os.open(path, os.O_RDONLY)
        at = os.fstat(handle).st_ino
        if self.held.setdefault(at, handle) != handle:
            os.close(handle)
        if path.is_dir():
            self.names[at] = {inside.name: self.look(inside) for inside in sorted(path.iterdir())}
        else:
            self.bytes[at] = path.read_bytes()
        return at

    def copy(self) -> Self:
        return type(self)(dict(self.names), dict(self.bytes))

    def close(self) -> None:
        for handle in self.held.values():
            os.close(handle)


def tree(at: int, now: View, of: Callable[[int], View]) -> Tree | bytes:
    """What is at an inode, each folder and file as in the view that is chosen for it."""
    if at not in now.names:
        return of(at).bytes.get(at, b"")
    return {name: tree(i, now, of) for name, i in of(at).names.get(at, {}).items()}


def remains(top: int, now: View, synced: View, rng: random.Random, mixtures: int):
    """(how it stopped, what is left), for each way to stop at this moment."""
    half = lambda at, x: x if synced.bytes.get(at) == x else x[: len(x) // 2]
    torn = View(now.names, {at: half(at, x) for at, x in now.bytes.items()})
    yield "killed", tree(top, now, lambda at: now)
    yield "power cut", tree(top, now, lambda at: synced)
    yield "power cut, names kept", tree(top, now, lambda at: now if at in now.names else synced)
    yield "power cut, bytes kept", tree(top, now, lambda at: synced if at in now.names else now)
    for _ in range(mixtures):
        chosen: dict[int, View] = {}
        one = lambda at: chosen.setdefault(at, rng.choice([now, synced, torn]))
        yield "power cut, some kept", tree(top, now, one)


def stops(root: Path, act: Callable[[], object], mixtures: int) -> list[list[tuple[str, Tree]]]:
    """For each call under `root` that `act` makes, and at its end: (how it stopped, what is left).
    What is there before `act` is taken for synced."""
    now, rng, lock = View(), random.Random(0), threading.RLock()
    top = now.look(root)
    synced, found = now.copy(), []

    def moment(what: str) -> None:
        now.look(root)
        every = remains(top, now, synced, rng, mixtures)
        found.append([(f"{how} {what}", left) for how, left in every])

    def watched(function: Callable) -> Callable:
        def call(*args, **kwargs):
            with lock:
                moment(f"before {function.__name__}{args}")
                result = function(*args, **kwargs)
                if function.__name__ == "fsync":
                    at = os.fstat(args[0]).st_ino
                    for mine, theirs in ((synced.names, now.names), (synced.bytes, now.bytes)):
                        mine.update({at: theirs[at]} if at in theirs else {})
                return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, watched(getattr(os, name)))
        act()
    moment("at the end")
    now.close()
    return found


def put(left: Tree, folder: Path) -> Path:
    folder.mkdir()
    for name, inside in left.items():
        if isinstance(inside, bytes):
            (folder / name).write_bytes(inside)
        else:
            put(inside, folder / name)
    return folder
