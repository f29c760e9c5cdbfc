"""Settings that optuna's TPE sampler draws (Bergstra et al. 2011), each from the results of earlier
ones; the first, which it would draw blindly, are spread over the space: random ones may coincide.

Draw n is a pure function of the n before it, which DIR/search.journal holds: an interrupted search
continues as if it had not been. Optuna's own tools read the journal.
"""

import contextlib
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.errors import ConfigError, DataError
from experiments.fairness import Fairness, Range
from experiments.lock import held_soon

JOURNAL = "search.journal"
SPREAD = 10  # draws that look at nothing, as many as optuna's


class Draws:
    """The ended trials of one variant, used while `journal(workdir)` is held. Raises ConfigError if
    optuna is missing, DataError for a journal that is damaged."""

    def __init__(self, workdir: Path, name: str, rules: Fairness) -> None:
        self.optuna = load_optuna()
        backend = self.optuna.storages.journal.JournalFileBackend(
            str(workdir.absolute() / JOURNAL), lock_obj=_Held()
        )
        try:
            self.study = self.optuna.create_study(
                storage=self.optuna.storages.JournalStorage(backend),
                study_name=name,
                direction="maximize",
                load_if_exists=True,
            )
        except OSError:
            raise
        except Exception as error:  # of any kind: optuna takes each line for one of its own
            raise DataError(f"{workdir / JOURNAL} is damaged: {error}") from error
        self.space = {field: self._distribution(x) for field, x in rules.search.items()}

    def values(self, number: int) -> dict[str, Any]:
        """The values of this trial: those that it had, or the next that are drawn."""
        ended = self.study.get_trials(deepcopy=False)
        if number < len(ended):
            return ended[number].params
        if number < SPREAD:
            shares = spread(number, len(self.space))
            return {name: _at(x, share) for (name, x), share in zip(self.space.items(), shares)}
        sampler = self.optuna.samplers.TPESampler(seed=number)
        study = self.optuna.create_study(sampler=sampler, direction="maximize")
        study.add_trials(ended)
        return study.ask(self.space).params

    def tell(self, number: int, accuracy: float | None) -> None:
        """Records the accuracy of trial `number`, None if it failed; an earlier record stays."""
        if number < len(self.study.get_trials(deepcopy=False)):
            return
        states = self.optuna.trial.TrialState
        self.study.add_trial(
            self.optuna.trial.create_trial(
                state=states.FAIL if accuracy is None else states.COMPLETE,
                value=accuracy,
                params=self.values(number),
                distributions=self.space,
            )
        )

    def _distribution(self, x: Range | list) -> Any:
        kinds = self.optuna.distributions
        if not isinstance(x, Range):
            return kinds.CategoricalDistribution(x)
        kind = kinds.IntDistribution if x.whole else kinds.FloatDistribution
        return kind(x.low, x.high, x.log)


def spread(number: int, dimensions: int) -> list[float]:
    """Point `number` of a sequence that fills the unit cube evenly at any length, and each of its
    axes: multiples of the golden ratio, then of square roots, modulo 1. (The golden ratio's
    analogues, Roberts 2018, fill the cube alone: of two, one is near 3/4, and of ten learning rates
    there were four.)"""
    primes = (p for p in itertools.count(3, 2) if all(p % n for n in range(3, p, 2)))
    roots = (math.sqrt(p) for p in primes if p not in (5, 13))  # those are in the first three
    steps = itertools.chain([(1 + 5**0.5) / 2, 0.5**0.5, 13**0.5 / 2], roots)
    return [(0.5 + (number + 1) * step) % 1 for step in itertools.islice(steps, dimensions)]


def _at(x: Any, share: float) -> Any:
    """The value of a distribution of optuna's at this share of it."""
    if hasattr(x, "choices"):
        return x.choices[int(share * len(x.choices))]
    half = 0.5 if isinstance(x.low, int) else 0.0  # the end of a whole number's share
    low, high = x.low - half, x.high + half
    value = low * (high / low) ** share if x.log else low + share * (high - low)
    return min(max(round(value) if half else value, x.low), x.high)


@contextlib.contextmanager
def journal(workdir: Path) -> Iterator[None]:
    """Holds the journal, after cutting off a partial line that a kill may have left."""
    with held_soon(workdir, "searching", seconds=60):
        path = workdir / JOURNAL
        if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
        yield


class _Held:
    """Optuna's lock, which a kill would leave behind; `journal` is there in its place."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def load_optuna() -> Any:
    """The module optuna. Raises ConfigError if it is missing."""
    try:
        import optuna
    except ImportError:
        what = "trials: drawing them needs optuna: pip install 'attn-lab[search]'"
        raise ConfigError([what], "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
