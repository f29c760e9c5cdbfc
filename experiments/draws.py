"""Settings that optuna's TPE sampler draws (Bergstra et al. 2011), each from how earlier ones did.

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


class Draws:
    """The trials of one variant that have ended. Raises ConfigError where optuna is missing,
    DataError for a journal that is damaged; hold `journal(workdir)` meanwhile."""

    def __init__(self, workdir: Path, name: str, rules: Fairness) -> None:
        self.optuna = _optuna()
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


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        what = "trials: drawing them needs optuna: pip install 'attn-lab[search]'"
        raise ConfigError([what], "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
