"""Where the runs of a comparison execute: in this process, in several, or on a cluster."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

from absl import flags

from experiments import slurm, workers

# where `work(*arguments)` is called, in so many places at most
Launch = Callable[[Callable[..., None], tuple, int], None]


def here(work: Callable[..., None], arguments: tuple, most: int) -> None:
    work(*arguments)


def define_launch(values: flags.FlagValues) -> None:
    """The flags --processes and --slurm."""
    how = "how many runs at a time, each on its share of the cores, which rounding depends on"
    flags.DEFINE_integer("processes", 1, how, lower_bound=1, flag_values=values)
    many = "submit --processes jobs, with submitit's parameters, as timeout_min=600"
    flags.DEFINE_list("slurm", [], many, flag_values=values)


def launch_of(values: flags.FlagValues) -> Launch:
    """The launcher that --processes and --slurm ask for. Raises ConfigError."""
    if values.slurm:
        parameters, logs = slurm.settings(values.slurm), Path(values.workdir) / "slurm"
        with tempfile.TemporaryDirectory() as nowhere:  # refused before a directory is claimed
            slurm.executor(Path(nowhere), parameters)
        submit = functools.partial(slurm.run, folder=logs, parameters=parameters)
        return lambda work, arguments, most: submit(work, arguments, min(values.processes, most))
    if values.processes == 1:
        return here
    return lambda work, arguments, most: workers.run(work, arguments, values.processes, most)
