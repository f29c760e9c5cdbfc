"""python -m experiments.studies.approximation [--out=DIR] [--seeds=5] [--steps=300]

How well do the variants that stand in for softmax approximate it? Measures the error of outputs and
gradients over features, logit scale, length and window, and writes results.json, README.md and the
figures; `seeds` are draws of inputs and features, `steps` those of hedgehog's distillation.
--out=experiments/studies/approximation renews the study itself.
"""

import dataclasses
import sys
from pathlib import Path

import jax

from experiments.studies import record
from experiments.studies.approximation import sweeps
from experiments.studies.approximation.figures import figures
from experiments.studies.approximation.inputs import Settings
from experiments.studies.approximation.tables import blocks

FOLDER = Path(__file__).parent


def study(seeds: int, steps: int, **changes):
    """(results, figures)."""
    settings = Settings(draws=seeds, steps=steps, **changes)
    with jax.default_matmul_precision("highest"):
        results = {"settings": dataclasses.asdict(settings), **sweeps.measure(settings)}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(
        study, blocks, FOLDER, seeds=5, steps=300, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
