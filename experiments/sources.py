"""What no commit here says of a run: the files of the user's own tasks, mechanisms and mixers, and
its data."""

import ast
import functools
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from experiments.config import Experiment, name_of
from experiments.own import is_own
from experiments.records import read_object
from experiments.rundir import RESULT


def sources(experiments: Iterable[Experiment]) -> dict[str, str]:
    """By the name of each: a hash of its class's file, and of those beside it that it imports, when
    first asked, since what is edited later is not what runs."""
    used = lambda x: (x.task, *x.model.attentions, x.model.cross)
    kinds = {name_of(one): type(one) for x in experiments for one in used(x)}
    return {name: _hash(kind) for name, kind in kinds.items() if is_own(kind)}


def data_of(experiment: Experiment, fingerprint: str) -> dict[str, str]:
    """What the task's files hold, and the run that it starts from, each by what says the same in
    all runs that are compared."""
    task, source = experiment.posed, experiment.init_from
    fields = ", ".join(f"{k}={v}" for k, v in task.definition().items())
    found = {f"{type(task).__name__} {fields}": fingerprint}
    if source:
        result = read_object(Path(source) / RESULT) or {}
        found[f"init_from {source}"] = str(result.get("sha256", ""))[:16]
    return found


@functools.cache
def _hash(kind: type) -> str:
    try:
        file, read = Path(inspect.getfile(kind)), {}
        _read(file, read)
    except (OSError, TypeError):  # of a notebook
        return ""
    return hashlib.sha256(b"".join(read.values())).hexdigest()[:8]


def _read(file: Path, read: dict[Path, bytes]) -> None:
    """Adds the file, and those beside it that it names where it imports, and what they import."""
    read[file] = file.read_bytes()
    try:
        nodes = [*ast.walk(ast.parse(read[file]))]
    except (SyntaxError, ValueError):  # compiled
        return
    of = lambda node: [getattr(node, "module", None) or "", *(x.name for x in node.names)]
    dotted = [x for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for x in of(n)]
    for part in sorted({part for name in dotted for part in name.split(".")}):
        beside = file.with_name(f"{part}.py")
        if beside not in read and beside.is_file():
            _read(beside, read)
