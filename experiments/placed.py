"""Which run of the sweep each folder of a comparison is, and of which variant."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.sweep import HASH, unlike, variants
from experiments.validation import flat


def placed(folders: Iterable[str], runs: Iterable[str]) -> dict[str, str]:
    """The name of the run in sweep.json, by that of its folder. What was solved for a run or chosen
    by a search changes only the hash at the end; a trial has a seed that no run has."""
    by_hash: dict[str, str] = {}
    by_stem: dict[str, list[str]] = {}
    for name in runs:
        by_hash[name[-HASH:]] = name
        by_stem.setdefault(name[:-HASH], []).append(name)
    found = {}
    for folder in folders:
        alike = by_stem.get(folder[:-HASH], [])  # several of "a b" and "a-b", written alike
        if name := by_hash.get(folder[-HASH:]) or (alike[0] if len(alike) == 1 else None):
            found[folder] = name
    return found


def seed(folder: str) -> int:
    """The seed of a run, from its folder's name, <variant>-<seed>-<hash>; 0 for any other name."""
    number = folder[: -HASH - 1].rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


def without_trials(there: Sequence[str], sweep: dict[str, Any]) -> list[str]:
    """The folders whose seed is in the sweep, if that was searched: a trial, chosen by its score,
    would count as one more seed of its variant."""
    if not sweep["rules"].get("search"):
        return list(there)
    seeds = {run["config"]["seed"] for run in sweep["runs"].values()}
    return [name for name in there if seed(name) in seeds]


def labelled(intact: dict[str, dict[str, Any]], swept: dict[str, str]) -> dict[str, str]:
    """The variant of each run: the sweep's name or, if that is unknown or would name several
    settings, one made of what differs."""
    told = dict(zip(intact, _labels(list(intact.values()))))
    labels = told | swept
    return swept | told if unlike((labels[n], x) for n, x in intact.items()) else labels


def _labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Variants of runs whose sweep is not known, from what differs between their settings."""
    values = [{k: v for k, v in flat(config).items() if k != "seed"} for config in configs]
    differ = lambda key: len({repr(x.get(key)) for x in values}) > 1
    keys = {key for x in values for key in x}  # each once: there may be a thousand runs
    apart = set(filter(differ, keys)) | {"model.attention.name"}
    return variants([{k: v for k, v in x.items() if k in apart} for x in values])
