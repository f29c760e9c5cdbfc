"""Train one experiment; the same command again goes on where it stopped.

    python -m experiments.train --config=FILE[:ARG] [--config.a.b=value] --workdir=DIR

Exit codes: 0 done, 1 what has none of its own, such as no device, 2 wrong configuration, 3 a number
was not finite, 4 no good checkpoint or data, or one that could not be written, 5 the directory is
another run's or cannot be written to, 129, 130 or 143 stopped by SIGHUP, SIGINT or SIGTERM and
saved.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from experiments import cli, redact
from experiments.config import Experiment
from experiments.config_file import read
from experiments.sinks import define_sinks
from experiments.stdout import tell

if TYPE_CHECKING:
    from experiments.kept import Kept


def run(
    experiment: Experiment,
    workdir: str | Path,
    *,
    command: str = "",
    progress: bool = True,
    sinks: Sequence[str] = (),
    kept: "Kept | None" = None,
) -> dict[str, Any]:
    """Trains to the end, continuing what `workdir` holds; returns result.json. Copies metrics to
    `sinks`, names in SINKS, and compiles nothing that is in `kept`, to which all else is added.

    Raises a LabError of `experiments.errors`: Interrupted after a signal, when all is saved.
    """
    # Flax, Optax and Orbax are only read once the configuration is known to be good.
    from experiments import running

    options = {"command": command, "progress": progress, "sinks": sinks, "kept": kept}
    return running.run(experiment, Path(workdir), **options)


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "FILE[:ARG], a Python file", flag_values=values)
    flags.DEFINE_string("workdir", None, "the run directory", flag_values=values)
    flags.DEFINE_boolean("progress", True, "show progress", flag_values=values)
    define_sinks(values)


def _run(values: flags.FlagValues, experiment: Experiment) -> None:
    command = redact.started("experiments.train")
    result = run(
        experiment,
        values.workdir,
        command=command,
        progress=values.progress,
        sinks=values.sink,
    )
    tell(json.dumps({name: _brief(value) for name, value in result.items()}, indent=1))


def _brief(value: Any) -> Any:
    """Without the answers of each row: thousands, which are in result.json."""
    if isinstance(value, dict):
        return {name: x for name, x in value.items() if name != "by_row"}
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.main(_define, _run, load=read, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
