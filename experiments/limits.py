"""How much memory there is, and how much of it this process may use."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def machine() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def allowed(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the machine's, or fewer where its control groups (of a
    container, of a SLURM job) have fewer. Beyond them the kernel kills it."""
    return min([machine(), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Of this process's control group and of those around it, in cgroups' versions 1 and 2."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            inner = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
            for folder in (inner, *inner.parents):
                with contextlib.suppress(OSError, ValueError):  # not mounted here; "max"
                    yield int((folder / name).read_text())
