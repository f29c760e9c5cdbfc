"""Which code a process runs: this checkout's commit, and what differs from it."""

import contextlib
import functools
import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("attn/*.py", "experiments/*.py")  # git's own patterns, where * goes down into folders


@functools.cache
def git_commit() -> str:
    """The commit of this checkout when first asked: what is edited later is not what runs."""
    return commit_of(ROOT)


def commit_of(checkout: Path) -> str:
    """A checkout's commit, with `-dirty-` and a hash of the difference if files differ from it or
    are code that git does not know yet, such as a new mechanism; "" outside of git."""
    git = lambda *arguments: _git(checkout, *arguments)
    if git("check-ignore", "."):  # installed in a repository: that one's commit says nothing of it
        return ""
    # not describe, which writes the index: killed meanwhile, its lock stops the user's own git
    lines = git("status", "--porcelain=v2", "--branch", "--untracked-files=no").splitlines()
    commit = "".join(x.split()[2].decode() for x in lines if x.startswith(b"# branch.oid "))
    new = git("ls-files", "-z", "--others", "--exclude-standard", *CODE).split(b"\0")[:-1]
    if not new and all(x.startswith(b"#") for x in lines):
        return commit
    difference = hashlib.sha256(git("diff", "HEAD", "--binary"))
    for name in new:
        with contextlib.suppress(OSError):  # a link to nothing
            difference.update(name + b"\0" + (checkout / os.fsdecode(name)).read_bytes())
    return f"{commit}-dirty-{difference.hexdigest()[:8]}"


def _git(checkout: Path, *arguments: str) -> bytes:
    """What it prints of this checkout; nothing if it cannot."""
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
