"""Processes that share a comparison's runs: each takes what no other holds, on its own cores."""

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

from experiments import records, signals
from experiments.errors import Interrupted, LabError, RunDirectoryError
from experiments.memory import run_in_caller
from experiments.redact import redacted
from experiments.say import say
from experiments.signals import ASKING, asking

VISIBLE = "CUDA_VISIBLE_DEVICES"


class WorkerError(LabError):
    """What ended a process; `code` is its exit status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def shares(items: Sequence[Any], processes: int) -> list[list[Any]]:
    """Equally many items for each, since a run's results depend on their number; the rest stay
    idle. If there are fewer than processes, some get the same."""
    if len(items) < processes:
        return [[items[n % len(items)]] if items else [] for n in range(processes)]
    size = len(items) // processes
    return [list(items[n * size : (n + 1) * size]) for n in range(processes)]


def gpus() -> list[str]:
    """The GPUs that this process may use, found without starting them."""
    if VISIBLE in os.environ:
        return [x for x in os.environ[VISIBLE].split(",") if x]
    devices = Path("/dev").glob("nvidia*")
    return sorted(m[1] for d in devices if (m := re.fullmatch(r"nvidia(\d+)", d.name)))


def run(work: Callable[..., None], arguments: tuple, processes: int, most: int) -> None:
    """`work(*arguments)` in `processes` processes until all have ended, each with a share of cores
    and GPUs: training processes that share their cores slow each other by far more than their
    number. No more than `most` are started; the share of each is the same, for results depend on
    it. Raises WorkerError if one ended in an error, which it said, as when it could not save,
    Interrupted if a signal came, which each of them got; one that was killed is left to
    `Cells.found`."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the half of XLA's threads
    cores = shares(records.cores(), processes)
    planned = [
        context.Process(target=_on, args=(mine, devices, work, arguments))
        for mine, devices in zip(cores, shares(gpus(), processes))
    ][:most]
    started, caught = [], []

    def forward(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for process in started:
            if process.is_alive():
                os.kill(process.pid, number)

    before = {number: signal.signal(number, forward) for number in asking()}
    resource_tracker.ensure_running()  # by the first start it would be, and unblock signals
    try:
        for process in planned:
            if caught:
                break
            # born with them blocked: while it imports there is nobody to catch KeyboardInterrupt
            signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
            process.start()
            started.append(process)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        for process in started:
            process.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        for number, handler in before.items():
            signal.signal(number, handler)
    asked = {128 + number for number in ASKING} if caught else set()
    if codes := [p.exitcode for p in started if p.exitcode > 0 and p.exitcode not in asked]:
        raise WorkerError(codes[0], f"{len(codes)} of {len(started)} processes ended in an error")
    if caught:
        saved = "all is saved; the same command goes on from it"
        again = "told twice; the same command goes on from what was saved"  # they end at once
        raise Interrupted(caught[0], again if len(caught) > 1 else saved)


def _end_with_parent() -> None:
    """As SIGTERM does, once the parent was killed: nobody would know of what trains on."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _on(cores: Sequence[int], devices: Sequence[str], work: Callable[..., None], arguments: tuple):
    os.setpgid(0, 0)  # the parent passes signals on: from a terminal they would come twice
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before XLA counts them
    if devices:
        os.environ[VISIBLE] = ",".join(devices)
    signals.AGAIN = 1.0  # a cluster tells each of its processes, and the parent passes it on
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        run_in_caller()
        work(*arguments)
    except Interrupted as error:
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (LabError, OSError) as error:
        say(redacted(f"error: {error}"))
        sys.exit(error.code if isinstance(error, LabError) else RunDirectoryError.code)
