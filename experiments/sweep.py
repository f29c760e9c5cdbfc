"""The runs of a comparison: the variant that each belongs to, and the folder that it is kept in."""

import collections
import copy
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.clashes import RECORDS
from experiments.config import Experiment, by_name
from experiments.config_file import set_field
from experiments.errors import ConfigError
from experiments.manifest import digest
from experiments.validation import flat, from_dict, to_dict

HASH = 10  # the last letters of a run's name, by which it is known whatever its variant is called


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run; runs of one `variant` differ in their seeds only."""

    variant: str
    experiment: Experiment
    match: str = ""  # the field that is solved where sizes are matched
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # how it was made fair
    kept_as: str = ""  # the name of its folder, if it was begun when the variant had another

    def having(self, values: dict[str, Any], **notes: str) -> "Planned":
        """The run with these fields. Raises ConfigError."""
        config = copy.deepcopy(self.config)
        for name, value in values.items():
            set_field(config, name, value)
        experiment = from_dict(config, where=f"{self.variant} with {values}")
        return Planned(self.variant, experiment, self.match, self.notes | notes)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        return to_dict(self.experiment)

    @functools.cached_property
    def name(self) -> str:
        """The run's folder: readable, and another one if anything in the configuration changes."""
        if self.kept_as:
            return self.kept_as
        readable = re.sub(r"[^A-Za-z0-9_.]+", "-", self.variant).strip("-.")[:60] or "variant"
        return f"{readable}-{self.experiment.seed}-{digest(self.config)[:HASH]}"


def plan(sweep: Sequence[tuple[dict[str, Any], Experiment]]) -> list[Planned]:
    """The runs, from what `config_file.read_sweep` gives. Raises ConfigError if one is twice."""
    own = lambda cell: {k: v for k, v in cell.items() if k not in ("seed", "match")}
    told = [{k: _record(k, v) for k, v in own(cell).items()} for cell, _ in sweep]
    planned = [
        Planned(name, experiment, cell.get("match", ""))
        for name, (cell, experiment) in zip(variants(told), sweep)
    ]
    same = collections.defaultdict(list)
    for p in planned:
        same[json.dumps(p.config, sort_keys=True)].append(p.name)
    if twice := [names for names in same.values() if len(names) > 1]:
        raise ConfigError([f"sweep() yields one run more than once: {', '.join(x)}" for x in twice])
    if several := unlike((p.variant, p.config) for p in planned):
        one = "sweep() yields different variants called"
        raise ConfigError([f"{one} {x!r}; give each a name of its own" for x in several])
    return planned


def firsts(planned: Iterable[Planned]) -> dict[str, Planned]:
    """The first run of each variant, in their order."""
    found: dict[str, Planned] = {}
    for p in planned:
        found.setdefault(p.variant, p)
    return found


def _record(field: str, value: Any) -> Any:
    """Records in place of bare names, so that a variant is called after them."""
    if field not in RECORDS:
        return value
    return [*map(by_name, value)] if isinstance(value, tuple | list) else by_name(value)


def unlike(runs: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """The variants whose name stands for several settings, seeds aside."""
    found = collections.defaultdict(set)
    for variant, config in runs:
        found[variant].add(seedless(config))
    return [variant for variant, settings in found.items() if len(settings) > 1]


def seedless(config: dict[str, Any]) -> str:
    """The settings without the seed, to be compared."""
    return json.dumps({**config, "seed": 0}, sort_keys=True)


def variants(settings: Sequence[dict[str, Any]]) -> list[str]:
    """A name for each: its own, or those of its records, such as a mechanism's; with what sets it
    apart from others of that name."""
    values = [flat({k: _numbered(v) for k, v in x.items()}) for x in settings]
    of_records = lambda x: " ".join(filter(None, map(_of_records, x, x.values())))
    briefs = [x.get("name") or of_records(x) for x in settings]
    groups: dict[str, list[dict[str, Any]]] = {}
    for brief, mine in zip(briefs, values):
        groups.setdefault(brief, []).append(mine)
    apart = {brief: _apart(alike) for brief, alike in groups.items()}
    names = []
    for brief, mine in zip(briefs, values):
        details = ", ".join(f"{apart[brief][k]}={mine[k]}" for k in mine if k in apart[brief])
        names.append(" ".join(filter(None, (brief, details))) or "all")
    return names


def _of_records(field: str, value: Any) -> str:
    """The names of its records; where all layers have one, that and how many they are."""
    names = [v for k, v in flat({field: _numbered(value)}).items() if k.endswith("name")]
    alike = isinstance(value, tuple | list) and len(names) > 1 and len({*names}) == 1
    return f"{names[0]} x {len(names)}" if alike else " ".join(names)


def _apart(alike: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The fields that are not the same in all of these settings, each without its sections unless
    another field is called so."""
    fields = dict.fromkeys(k for x in alike for k in x)
    last = lambda k: k.rpartition(".")[2]
    count = collections.Counter(map(last, fields))
    differ = [k for k in fields if any(x.get(k) != alike[0].get(k) for x in alike)]
    return {k: last(k) if count[last(k)] == 1 else k for k in differ}


def _numbered(value: Any) -> Any:
    """A record for each layer as a dict of them, so that each has a name."""
    layers = isinstance(value, tuple | list) and all(isinstance(x, dict) for x in value)
    return {str(n): x for n, x in enumerate(value)} if layers else value


if __name__ == "__main__":
    raise SystemExit(
        "no command, but the runs of python -m experiments.compare --config=FILE --workdir=DIR"
    )
