"""Settings that optuna's TPE sampler draws (Bergstra et al. 2011), each from how earlier ones did;
the first, which it would draw blindly, are spread over the space, as three at random may be one.

Draw n is a pure function of the n before it, which DIR/search.journal holds: an interrupted search
goes on as if it had not been. Optuna's own tools read the journal.
"""

import contextlib
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
    """The trials of one variant that have ended. Raises ConfigError where optuna is missing,
    DataError for a journal that is damaged; hold `journal(workdir)` meanwhile."""

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
        """Of this trial: those that it had, or the next ones."""
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
        """What trial `number` came to, None if it failed; what was told before stays."""
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
        whole = isinstance(x.low, int) and isinstance(x.high, int)
        return (kinds.IntDistribution if whole else kinds.FloatDistribution)(x.low, x.high, x.log)


def spread(number: int, dimensions: int) -> list[float]:
    """Point `number` of a sequence that fills the unit cube evenly however far one goes: multiples
    of the golden ratio's inverse, and of what is like it in more dimensions (Roberts 2018)."""
    ratio = 1.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return [(0.5 + (number + 1) / ratio**n) % 1 for n in range(1, dimensions + 1)]


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
    """Holds the journal, without the half of a line that a kill may have left."""
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
    """The module. Raises ConfigError where it is missing."""
    try:
        import optuna
    except ImportError:
        what = "trials: drawing them needs optuna: pip install 'attn-lab[search]'"
        raise ConfigError([what], "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
