"""The runs of a comparison: the variant that each belongs to, and the folder that it is kept in."""

import collections
import copy
import dataclasses
import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from experiments.config import Experiment
from experiments.config_file import set_field
from experiments.errors import ConfigError
from experiments.manifest import digest
from experiments.validation import flat, from_dict, to_dict


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run; runs of one `variant` differ in their seeds only."""

    variant: str
    experiment: Experiment
    match: str = ""  # the field that is solved where sizes are matched
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # how it was made fair

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
        """Its folder: readable, and another one if anything in the configuration changes."""
        readable = re.sub(r"[^A-Za-z0-9_.]+", "-", self.variant).strip("-.")[:60] or "variant"
        return f"{readable}-{self.experiment.seed}-{digest(self.config)[:10]}"


def plan(sweep: Sequence[tuple[dict[str, Any], Experiment]]) -> list[Planned]:
    """The runs, from what `config_file.read_sweep` gives. Raises ConfigError if one is twice."""
    told = [{k: v for k, v in cell.items() if k not in ("seed", "match")} for cell, _ in sweep]
    planned = [
        Planned(name, experiment, cell.get("match", ""))
        for name, (cell, experiment) in zip(variants(told), sweep)
    ]
    same = collections.defaultdict(list)
    for p in planned:
        same[json.dumps(p.config, sort_keys=True)].append(p.name)
    if twice := [names for names in same.values() if len(names) > 1]:
        raise ConfigError([f"sweep() yields one run more than once: {', '.join(x)}" for x in twice])
    return planned


def variants(settings: Sequence[dict[str, Any]]) -> list[str]:
    """A name for each: its own, or those of its records, such as a mechanism's; and what sets it
    apart from others of that name."""
    values = [flat({k: _numbered(v) for k, v in x.items()}) for x in settings]
    of_records = lambda x: " ".join(v for k, v in x.items() if k.endswith("name"))
    briefs = [x.get("name") or of_records(x) for x in values]
    names = []
    for brief, mine in zip(briefs, values):
        alike = [x for x, other in zip(values, briefs) if other == brief]
        apart = [k for k in mine if any(x.get(k) != mine[k] for x in alike)]
        details = ", ".join(f"{k.rpartition('.')[2]}={mine[k]}" for k in apart)
        names.append(" ".join(filter(None, (brief, details))) or "all")
    return names


def _numbered(value: Any) -> Any:
    """A record for each layer as a dict of them, so that each has a name."""
    layers = isinstance(value, tuple | list) and all(isinstance(x, dict) for x in value)
    return {str(n): x for n, x in enumerate(value)} if layers else value


if __name__ == "__main__":
    raise SystemExit(
        "no command, but the runs of python -m experiments.compare --config=FILE --workdir=DIR"
    )
