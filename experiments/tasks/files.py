"""Files of data that a user fetched: what is missing or broken is named in one line."""

import fnmatch
import os
from pathlib import Path

from experiments.errors import DataError


def folder(data_dir: str, *, holding: str, origin: str) -> Path:
    """The folder. Raises DataError that says which files it should hold, and their origin."""
    path = Path(data_dir)
    wanted = f"expected the folder that holds {holding} ({origin})"
    if not data_dir:
        raise DataError(f"task.data_dir: {wanted}, got none")
    if path.is_file():
        packed = path.name.endswith((".gz", ".tgz", ".tar", ".zip"))
        what = "an archive: unpack it first" if packed else "a file"
        raise DataError(f"{path}: {wanted}, got {what}")
    if not path.is_dir():
        moved = f"; if it moved since a run began, leave a link to it: ln -s NEW {path}"
        raise DataError(f"{path}: {wanted}, but it does not exist{moved}")
    return path


def present(path: Path, *, origin: str) -> Path:
    """The path of a file that is there and not empty. Raises DataError."""
    if not path.is_file():
        raise DataError(f"{path}: expected this file, but it does not exist ({origin})")
    if not path.stat().st_size:
        raise DataError(f"{path}: expected data, but the file is empty; fetch it again ({origin})")
    return path


def matching(path: Path, pattern: str) -> list[Path]:
    """The files of a folder with such names, sorted; none if it does not exist. Raises DataError
    for a folder that cannot be read, which Path.glob takes for an empty one."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: expected a folder that can be read: {error.strerror}") from None
    return sorted(path / name for name in fnmatch.filter(names, pattern))


def inside(root: Path, name: str, *, where: str) -> Path:
    """The file of this name under root. Raises DataError for a name that leads out of it."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{where}: expected a file inside {root}, got {name[:100]!r}")
    return root / path


def counted(got: int, expected: int, what: str, *, where: str | Path, origin: str) -> None:
    """Raises DataError for another number than expected: half an archive looks like a whole one."""
    if got != expected:
        hint = "fetch or unpack again what is half there, else set the sizes of the splits"
        raise DataError(f"{where}: expected {expected:,} {what}, got {got:,}; {hint} ({origin})")
