"""A run directory, of one experiment and with one writer at a time."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.config import Experiment
from experiments.disk import no_pipe, write_json
from experiments.errors import ConfigError, RunDirectoryError
from experiments.lock import Held, held
from experiments.validation import differences, from_dict, to_dict

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"


@contextlib.contextmanager
def claimed(workdir: Path, experiment: Experiment) -> Iterator[Held]:
    """Holds the directory for this experiment. Raises RunDirectoryError if it is another's."""
    with held(workdir) as lock:
        _check_config(workdir, experiment)
        yield lock


def write_config(workdir: Path, experiment: Experiment) -> None:
    """Claims the directory for this experiment from here on."""
    if not (workdir / CONFIG).exists():
        write_json(workdir / CONFIG, to_dict(experiment))


def refuse_cells(workdir: Path) -> None:
    """Raises RunDirectoryError for the folder in which a comparison keeps its runs."""
    folder = workdir.absolute()
    if folder.name == "cells" and (folder.parent / "sweep.json").exists():
        what = f"holds the runs of the comparison in {folder.parent}; name another --workdir"
        raise RunDirectoryError(f"{workdir} {what}")


def _check_config(workdir: Path, experiment: Experiment) -> None:
    refuse_cells(workdir)
    if (workdir / "cells").is_dir():
        raise RunDirectoryError(f"{workdir} holds a comparison; name another --workdir")
    there = read_json(workdir / CONFIG)
    if there is None:
        if list((workdir / "checkpoints").glob("[0-9]*")):
            raise RunDirectoryError(f"{workdir} has checkpoints but no {CONFIG}: whose are they?")
    elif lines := differences(there, to_dict(experiment)):
        raise RunDirectoryError(
            "\n  ".join([f"{workdir} belongs to another configuration:", *lines])
            + "\n  give another --workdir, or the configuration that it was started with"
            + moved(lines)
        )


def moved(lines: Iterable[str]) -> str:
    """What to do if these differences are of a data folder: its contents are known anyway."""
    there = any(".data_dir: " in line for line in lines)
    return ", with a link to data that moved at its old place (ln -s)" * there


def read_experiment(workdir: Path, *, named: str = "--workdir") -> Experiment:
    """The experiment of the directory, called `named` in errors. Raises ConfigError if there is
    none, RunDirectoryError if it is not a run directory."""
    if not workdir.is_dir():
        what = "expected the folder of a run, and there is no such folder"
        raise ConfigError([f"{named}={workdir}: {what}"])
    there = read_json(workdir / CONFIG)
    if there is None:
        if (cells := workdir / "cells").is_dir():
            runs = sorted(x.parent for x in cells.glob(f"*/{CONFIG}"))
            hint = f", such as {runs[0]}" if runs else ""
            raise RunDirectoryError(f"{workdir} holds a comparison: name one of its runs{hint}")
        raise RunDirectoryError(f"{workdir} is no run directory: it has no {CONFIG}")
    try:
        return from_dict(there, where=str(workdir / CONFIG))
    except ConfigError as error:
        raise RunDirectoryError(str(error)) from None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is none. Raises RunDirectoryError if it is damaged."""
    try:
        value = json.loads(no_pipe(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} holds no JSON object")
    return value
