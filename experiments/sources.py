"""Which files the user's own tasks, mechanisms and mixers came from, that no commit here tells."""

import functools
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from experiments.config import Experiment, name_of


def sources(experiments: Iterable[Experiment]) -> dict[str, str]:
    """By the name of each: a hash of its class's file when it was first asked, for what is edited
    later is not what runs. What that file imports is not looked at."""
    used = lambda x: (x.task, *x.model.attentions, x.model.cross)
    kinds = {name_of(one): type(one) for x in experiments for one in used(x)}
    ours = lambda kind: kind.__module__.startswith(("attn.", "experiments."))
    return {name: _hash(kind) for name, kind in kinds.items() if not ours(kind)}


@functools.cache
def _hash(kind: type) -> str:
    try:
        return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()[:8]
    except (OSError, TypeError):  # of a notebook
        return ""
