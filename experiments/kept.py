"""Train steps that a process trained with, kept so that timing one does not compile it again."""

import dataclasses
from typing import NamedTuple

from experiments.config import Experiment
from experiments.learner import Learner
from experiments.measure.cost import Program
from experiments.validation import digest

MOST = 32  # variants: a program is some megabytes


class Trained(NamedTuple):
    learner: Learner
    program: Program


class Kept:
    """Of each variant that was trained last, whatever its seed."""

    def __init__(self) -> None:
        self._found: dict[str, Trained] = {}

    def add(self, learner: Learner, program: Program) -> None:
        variant = _variant(learner.experiment)
        self._found.pop(variant, None)
        self._found[variant] = Trained(learner, program)
        for oldest in list(self._found)[:-MOST]:
            del self._found[oldest]

    def get(self, experiment: Experiment) -> Trained | None:
        return self._found.get(_variant(experiment))


def _variant(experiment: Experiment) -> str:
    return digest(dataclasses.replace(experiment, seed=0))
