"""A run in its directory: claimed, described, trained."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments import records
from experiments.config import Experiment
from experiments.display import Display
from experiments.errors import RunDirectoryError
from experiments.kept import Kept
from experiments.loop import Session
from experiments.memory import keep_freed_memory
from experiments.rundir import RESULT, claimed, read_json, write_config
from experiments.signals import Signals
from experiments.sinks import Sinks
from experiments.sources import data_of, sources
from experiments.validation import to_dict


def run(
    experiment: Experiment,
    workdir: Path,
    *,
    command: str,
    progress: bool,
    sinks: Sequence[str],
    kept: Kept | None,
) -> dict[str, Any]:
    """`experiments.train.run`."""
    keep_freed_memory()
    with Signals() as signals, claimed(workdir, experiment) as lock:
        with contextlib.suppress(RunDirectoryError):  # damaged: it is made again
            if records.is_result(result := read_json(workdir / RESULT), to_dict(experiment)):
                return result
        with contextlib.ExitStack() as stack:
            display = stack.enter_context(Display(total=experiment.train.steps, shown=progress))
            copies = stack.enter_context(Sinks(sinks, workdir, warn=display.warn))
            drawing = stack.enter_context(ThreadPoolExecutor(1))
            session = Session(
                experiment,
                workdir,
                lock=lock,
                signals=signals,
                display=display,
                copies=copies,
                drawing=drawing,
                known=None if kept is None else kept.programs(),
            )
            if kept is not None and session.devices.whole.num_devices == 1:  # costs are of one
                kept.add(session.learner, session.train_steps.program)
            try:
                # Not before the model could be built: until then the directory is nobody's.
                write_config(workdir, experiment)
                for other in (records.other_hardware, records.other_settings):
                    if line := other(workdir / "environment.json"):
                        display.warn(line)
                records.write_environment(
                    workdir / "environment.json",
                    command,
                    source=sources([experiment]),
                    data=data_of(experiment, session.checkpoints.data),
                )
                return session.run()
            except OSError as error:
                raise RunDirectoryError(f"{workdir} cannot be written to: {error}") from error
