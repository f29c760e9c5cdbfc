"""Runs of a comparison as jobs of a cluster, through submitit: each takes what no other holds."""

import ast
import contextlib
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from experiments.errors import ConfigError, Interrupted
from experiments.memory import run_in_caller
from experiments.redact import redacted
from experiments.say import say

# of a time limit or of preemption: submitit asks for USR2, or what SUBMITIT_PREEMPT_SIGNAL says
WARNING = (signal.SIGUSR1, signal.SIGUSR2)
LISTS = ("_setup", "_teardown", "_srun_args")  # of lines of a shell, or of arguments


def settings(given: Sequence[str]) -> dict[str, Any]:
    """`timeout_min=600`, `slurm_partition=gpu`: submitit's parameters. Raises ConfigError."""
    if wrong := [x for x in given if not all(x.partition("="))]:
        raise ConfigError([f"--slurm={x}: expected NAME=VALUE, as timeout_min=600" for x in wrong])
    return {key: _value(key, text) for key, _, text in (x.partition("=") for x in given)}


def _value(key: str, text: str) -> Any:
    """Python's number, True or False, or list, as submitit asks for: the text False is true, and
    one that stands for a list would be taken letter by letter."""
    with contextlib.suppress(Exception):
        return ast.literal_eval(text)
    return [text] if key.endswith(LISTS) else text


def executor(folder: Path, parameters: dict[str, Any]) -> Any:
    """submitit's, which makes the folder. Raises ConfigError for what it refuses."""
    try:
        import submitit
    except ImportError:
        raise ConfigError(["--slurm: needs submitit: pip install 'attn-lab[launch]'"]) from None
    others = {k: v for k, v in parameters.items() if k != "cluster"}
    with _refused():
        made = submitit.AutoExecutor(folder, cluster=parameters.get("cluster", "slurm"))
        made.update_parameters(name="attn", **others)
    return made


def run(
    work: Callable[..., None],
    arguments: tuple,
    processes: int,
    folder: Path,
    parameters: dict[str, Any],
) -> None:
    """`work(*arguments)` in `processes` jobs until all have ended, logs in `folder`; "cluster"
    in the parameters is "slurm", or "local" to try it. Raises ConfigError for what submitit or the
    cluster refuses. A job that is killed, or warned of its time limit, leaves its run to be
    continued by the same command."""
    submit = executor(folder, parameters).submit
    prepared = spawn.get_preparation_data("attn")
    del prepared["authkey"]  # which only a child may be given
    there = _as_spawned, prepared, pickle.dumps((work, arguments))
    jobs = []
    try:
        with _refused():
            for _ in range(processes):
                jobs.append(submit(*there))
        for job in jobs:
            if (error := job.exception()) is not None:  # waits for it
                say(redacted(f"job {job.job_id} failed, see {folder}: {error}"))
    except KeyboardInterrupt:
        if jobs and parameters.get("cluster", "slurm") == "slurm":  # "local" ones get it too
            ids = " ".join(job.job_id for job in jobs)
            say(f"the jobs that were submitted go on; to stop them: scancel {ids}")
        raise


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, NameError, AssertionError, TypeError) as error:
        raise ConfigError([f"--slurm: {error}"]) from None


def _as_spawned(prepared: dict[str, Any], pickled: bytes) -> None:
    """As a process of --processes=2 does it: a file that is run in place of the command, whose
    mechanisms the runs may have, is imported before they are read."""
    spawn.prepare(prepared)
    work, arguments = pickle.loads(pickled)
    for number in WARNING:  # what submitit raises there, in a step, would be the run's failure
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    run_in_caller()
    try:
        work(*arguments)
    except Interrupted as error:  # for the job's log; the run is left to the same command
        say(str(error))
