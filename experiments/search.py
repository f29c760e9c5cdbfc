"""Settings chosen for each variant on validation. Every trial is a run of one seed, which no table
shows: the best of many trials is lucky too, and the seeds that are shown must not be."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.cells import Cells
from experiments.draws import Draws, journal
from experiments.errors import ConfigError, LabError
from experiments.fairness import Fairness, Range
from experiments.report.data import at
from experiments.sweep import Planned, firsts

APART = 10**6  # from the first seed to that of trials
MOST = 1000  # that are tried before any run
NEAR = 0.05  # of a range: so close to its end a better value may lie beyond
POLL = 5  # seconds between looks at what another process runs
Score = tuple[float, float]  # accuracy, and the loss with its sign turned
Finish = Callable[[Cells], bool]  # runs what is left; False while another process has some of it


def search(planned: Sequence[Planned], rules: Fairness, workdir: Path, finish: Finish) -> Cells:
    """The trials of every variant, all ended. Raises what `check_values` and `Draws` do."""
    if rules.trials is None:
        return _finished(Cells(workdir, tuple(combinations(planned, rules))), finish)
    check_values(planned, rules)
    runs = trial_runs(planned)
    tried: list[Planned] = []
    for number in range(rules.trials):
        # the variants' next trials together, for several processes to share
        with journal(workdir):
            draws = [Draws(workdir, p.name, rules) for p in runs]
            drawn = [(p, d.values(number)) for p, d in zip(runs, draws)]
        which = f"draw {number + 1} of {rules.trials}"
        trials = [p.having(x, trial=f"{_told(x)}, {which}") for p, x in drawn]
        cells = _finished(Cells(workdir, tuple(trials)), finish)
        with journal(workdir):
            for p, trial in zip(runs, trials):
                score = _score(cells, trial)
                Draws(workdir, p.name, rules).tell(number, score and score[0])
        tried += trials
    return Cells(workdir, tuple(tried))


def _finished(cells: Cells, finish: Finish) -> Cells:
    """The same once every trial has ended, so that none is passed over. Raises LabError if some do
    not end, as when what ran them is killed again and again."""
    left = math.inf
    while left:
        if not finish(cells):
            time.sleep(POLL)
            continue
        rest = cells.unfinished()
        if len(rest) >= left:
            names = ", ".join(sorted({p.variant for p in rest}))
            raise LabError(
                f"{len(rest)} of {len(cells.planned)} trials did not end ({names}): what ran them "
                "was killed, for memory perhaps; nothing is chosen without them\n"
                "  the same command goes on with them"
            )
        left = len(rest)
    return cells


def trial_runs(planned: Sequence[Planned]) -> list[Planned]:
    """The run of each variant that its trials change: the first, with a seed that is not shown."""
    shown = {p.experiment.seed for p in planned}
    seeds = lambda first: ((first + n * APART) % 2**31 for n in itertools.count(1))
    own = lambda p: next(seed for seed in seeds(p.experiment.seed) if seed not in shown)
    return [p.having({"seed": own(p)}) for p in firsts(planned).values()]


def combinations(planned: Sequence[Planned], rules: Fairness) -> list[Planned]:
    """A run of each variant with each combination of the listed values."""
    settings = [dict(zip(rules.search, x)) for x in itertools.product(*rules.search.values())]
    return [p.having(x, trial=_told(x)) for p in trial_runs(planned) for x in settings]


def check_values(planned: Sequence[Planned], rules: Fairness) -> None:
    """Raises ConfigError for a combination of values that a run cannot have: a draw of it would end
    the search, whenever it comes. Of more than MOST combinations each value is tried by itself, of
    a range of real numbers, or of more than MOST whole ones, the ends."""
    if rules.trials is None:
        combinations(planned, rules)
        return
    listed = {name: _listed(x) for name, x in rules.search.items()}
    if math.prod(map(len, listed.values())) <= MOST:
        tried = [dict(zip(listed, x)) for x in itertools.product(*listed.values())]
    else:
        tried = [{name: value} for name, x in listed.items() for value in x]
    for first in trial_runs(planned):
        made = [first.having(values).config for values in tried]
        for name, x in rules.search.items():
            real = any(isinstance(at(config, name), float) for config in made)
            if isinstance(x, Range) and x.whole and real:
                what = f"expected low={x.low:.1f} or high={x.high:.1f} of a field of real numbers"
                what += f", got {x.low} and {x.high}, between which whole ones alone are drawn"
                raise ConfigError([f"search.{name}: {what}"])


def _listed(x: Sequence | Range) -> Sequence:
    if not isinstance(x, Range):
        return x
    return range(x.low, x.high + 1) if x.whole and x.high - x.low < MOST else (x.low, x.high)


def chosen(planned: Sequence[Planned], tried: Cells, rules: Fairness) -> list[Planned]:
    """The runs with the setting that was best on validation, of equally accurate ones that of the
    least loss, of those the first; if every trial failed, that of the first, whose failure then
    shows."""
    trials: dict[str, dict[str, tuple[Planned, Score | None]]] = {}
    for trial in tried.planned:  # a setting that was drawn twice is one run
        trials.setdefault(trial.variant, {})[trial.name] = trial, _score(tried, trial)
    made = []
    for p in planned:
        own = [*trials[p.variant].values()]
        ended = [(trial, score) for trial, score in own if score is not None]
        best, most = max(ended, key=lambda x: x[1], default=own[0])  # of equal ones the first
        same = [score for _, score in ended if score[0] == most[0]]
        values = {name: at(best.config, name) for name in rules.search}
        told = _told(values, lambda name: _end(values[name], rules.search[name]))
        told += f", {_of(len(ended), len(own), len(same), same.count(most))}"
        made.append(p.having(values, searched=told))
    return made


def _score(cells: Cells, trial: Planned) -> Score | None:
    """On validation, the larger the better; None if it failed. Raises LabError if it has not ended:
    its failure may have been forgotten meanwhile, by --retry_failed of another process."""
    result, error = cells.outcome(trial)
    if result is None and error is None:
        what = "has not ended, or what it left was removed: nothing is chosen without it"
        raise LabError(f"{cells.folder(trial)}: {what}\n  the same command goes on with it")
    if not result:
        return None
    found = result["validation"]
    return found["accuracy"], -found.get("loss", 0.0)


def _of(ended: int, count: int, accurate: int, equal: int) -> str:
    """`accurate` are as accurate as the best, `equal` of them have its loss too."""
    if not ended:
        return f"the first of {count}, which all failed"
    best = "best" if accurate == 1 else f"the least loss of {accurate} equal bests"
    best = best if equal == 1 else f"the first of {equal} equal bests"
    return f"{best} of {ended}" + (f" ({count - ended} failed)" if ended < count else "")


def _told(values: dict[str, Any], more: Callable[[str], str] = lambda name: "") -> str:
    last = lambda name: name.rpartition(".")[2]
    return ", ".join(f"{last(name)}={_short(x)}{more(name)}" for name, x in values.items())


def _end(value: Any, listed: Sequence | Range) -> str:
    """Told of the first or last of the numbers listed, and near the ends of a range: a better one
    may lie beyond."""
    if isinstance(listed, Range):
        scale = math.log if listed.log else float
        low, x, high = map(scale, (listed.low, value, listed.high))
        share = (x - low) / (high - low)
        which = "largest" if share >= 1 - NEAR else "smallest" if share <= NEAR else ""
        return which and f" (near the {which} allowed)"
    if not all(type(x) in (int, float) for x in listed) or min(listed) < value < max(listed):
        return ""
    return f" ({'largest' if value == max(listed) else 'smallest'} tried)"


def _short(value: Any) -> str:
    value = value["name"] if isinstance(value, dict) else value  # a record, of which it was listed
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(
        "no command, but the search of python -m experiments.compare --config=FILE --workdir=DIR"
    )
