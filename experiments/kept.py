"""What a process compiled for its runs, kept: runs of other seeds have the same programs, and a
train step is timed with the program that trained."""

import dataclasses
from typing import NamedTuple

from experiments.config import Experiment
from experiments.learner import Learner
from experiments.measure.cost import Known, Program
from experiments.validation import fingerprint

MOST = 32  # variants: a program is some megabytes
EACH = 3  # programs of a run: the first state, a step, an evaluation


class Trained(NamedTuple):
    learner: Learner
    program: Program


class Kept:
    """Those of the variants trained last, whatever their seed; and the programs of all."""

    def __init__(self) -> None:
        self._found: dict[str, Trained] = {}
        self._programs: Known = {}

    def add(self, learner: Learner, program: Program) -> None:
        variant = _variant(learner.experiment)
        self._found.pop(variant, None)
        self._found[variant] = Trained(learner, program)
        for oldest in list(self._found)[:-MOST]:
            del self._found[oldest]

    def get(self, experiment: Experiment) -> Trained | None:
        return self._found.get(_variant(experiment))

    def programs(self) -> Known:
        """Those of the last runs, to look in and to add to."""
        for oldest in list(self._programs)[: -EACH * MOST]:
            del self._programs[oldest]
        return self._programs


def _variant(experiment: Experiment) -> str:
    return fingerprint(dataclasses.replace(experiment, seed=0))
