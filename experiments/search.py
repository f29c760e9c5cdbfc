"""Settings chosen for each variant on validation: every combination is a run of its first seed."""

import itertools
from collections.abc import Sequence

from experiments.cells import Cells
from experiments.fairness import Fairness
from experiments.report.data import at
from experiments.sweep import Planned


def trials(planned: Sequence[Planned], rules: Fairness) -> list[Planned]:
    """The runs to choose by. Raises ConfigError for a value that a run cannot have."""
    if not rules.search:
        return []
    firsts = {p.variant: p for p in reversed(planned)}  # the first of each is the last to stay
    settings = [dict(zip(rules.search, x)) for x in itertools.product(*rules.search.values())]
    order = dict.fromkeys(p.variant for p in planned)
    return [firsts[name].having(setting) for name in order for setting in settings]


def chosen(planned: Sequence[Planned], tried: Cells, rules: Fairness) -> list[Planned]:
    """The runs with the setting that was best on validation, of equal ones the first; where every
    trial failed, the first too, so that the failure shows."""
    best: dict[str, Planned] = {}
    scores: dict[str, float] = {}
    for trial in tried.planned:
        result, _ = tried.outcome(trial)
        score = result["validation"]["accuracy"] if result else float("-inf")
        if trial.variant not in best or score > scores[trial.variant]:
            best[trial.variant], scores[trial.variant] = trial, score
    count = len(tried.planned) // len(best)
    made = []
    for p in planned:
        values = {name: at(best[p.variant].config, name) for name in rules.search}
        told = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in values.items())
        made.append(p.having(values, searched=f"{told}, best of {count}"))
    return made
