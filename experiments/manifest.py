"""What a checkpoint's folder must hold, byte for byte: written last, verified before use."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from experiments import disk

NAME = "manifest.json"


class Damaged(Exception):
    """A folder that is not what its manifest says."""


def write(folder: Path, body: dict[str, Any]) -> None:
    """Hashes every file, then writes `body` with the hashes; all is on the disk afterwards."""
    files = {str(p.relative_to(folder)): _entry(p, sync=True) for p in _files(folder)}
    body = {**body, "files": files}
    disk.write_json(folder / NAME, {"sha256": digest(body), "body": body})
    for path in [p for p in folder.rglob("*") if p.is_dir()] + [folder, folder.parent]:
        disk.sync(path)


def read(folder: Path) -> dict[str, Any]:
    """The body, as it was written. Raises Damaged."""
    try:
        content = disk.no_pipe(folder / NAME).read_bytes().decode("utf-8")
        manifest = json.loads(content)
        body, found = manifest["body"], manifest["sha256"]
    except FileNotFoundError:
        raise Damaged(f"{NAME} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{NAME} cannot be read: {error}") from None
    if found != digest(body) or content != disk.as_json(manifest):
        raise Damaged(f"{NAME} is not what was written")
    return body


def verify(folder: Path) -> dict[str, Any]:
    """The body, if every file is as it says. Raises Damaged with the first thing that is not."""
    body = read(folder)
    for name, expected in body["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        try:
            found = _entry(path)
        except OSError as error:  # as of a bad sector
            raise Damaged(f"{name} cannot be read: {error}") from None
        if found["size"] != expected["size"]:
            raise Damaged(f"{name} has {found['size']} bytes, not {expected['size']}")
        if found["sha256"] != expected["sha256"]:
            raise Damaged(f"{name} is not what was written")
    return body


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / NAME)


def _entry(path: Path, *, sync: bool = False) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def digest(body: dict[str, Any]) -> str:
    """The hash of the values, whatever their order and spacing in a file."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def short(body: dict[str, Any]) -> str:
    """The first sixteen digits of `digest`: to name a configuration by."""
    return digest(body)[:16]
