"""What a comparison needs before it begins: a directory, data to read, ended runs to start from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.cells import check
from experiments.config import Experiment
from experiments.draws import load_optuna
from experiments.errors import ConfigError, LabError
from experiments.fairness import Fairness
from experiments.rundir import RESULT, read_experiment
from experiments.sweep import Planned


def ready(workdir: Path, sweep: Sequence[Planned], rules: Fairness) -> None:
    """Raises what `cells.check` does; and for a directory not claimed yet, DataError or ConfigError
    if no run's data can be read, ConfigError if one starts from what is not an ended run, or if
    there is no optuna to draw trials."""
    if rules.trials:
        load_optuna()
    if not (workdir / "sweep.json").exists():
        experiments = [p.experiment for p in sweep]
        _read({x.posed: x for x in experiments}.values())
        # values that are no text are refused with those of other fields, by `search`
        tried = rules.search.get("init_from", [])
        starts = [x for x in tried if isinstance(x, str)] if isinstance(tried, list) else []
        starts = [*(x.init_from for x in experiments), *starts]
        _ended(dict.fromkeys(filter(None, starts)))
    check(workdir, sweep, rules)


def _read(experiments: Iterable[Experiment]) -> None:
    """One row of each split. Raises the first error if there is no run whose data can be read."""
    from experiments import fits
    from experiments.learner import refusing  # Flax, when the configuration is known to be good

    errors = []
    for x in experiments:
        rows = lambda x=x: [next(x.posed.evaluation(s, 1)) for s in ("validation", "test")]
        try:
            refusing("the task", lambda x=x: fits.data(x))  # before anything is drawn
            refusing("the task", rows)
            refusing("the task", lambda x=x: x.posed.batch(x.seed, 0, 1))
            return
        except LabError as error:
            errors.append(error)
    raise errors[0]


def _ended(sources: Iterable[str]) -> None:
    """Raises ConfigError for a run to start from that is not there, or not at its end: it may go
    on, and of one variant the seeds that begin later would start from other parameters."""
    for source in sources:
        read_experiment(Path(source), named="init_from")
        if not (Path(source) / RESULT).exists():
            what = "expected a run at its end, for one that goes on gives later runs another start"
            raise ConfigError([f"init_from={source}: {what}; end it first"])
