"""python -m experiments.studies.lra_defects [--out=DIR] [--seeds=5]

What do Long Range Arena's local, sinkhorn, reformer and performer attend to? Draws the receptive
fields of the published layers beside ours, and measures what each defect changes over `seeds`
draws. --out=experiments/studies/lra_defects renews the study itself.
"""

import dataclasses
import sys
from pathlib import Path

import jax

from experiments.studies import record
from experiments.studies.lra_defects.figures import figures
from experiments.studies.lra_defects.measure import Sizes, measure
from experiments.studies.lra_defects.tables import blocks

FOLDER = Path(__file__).parent


def study(seeds: int):
    """(results, figures)."""
    sizes = Sizes(draws=seeds)
    with jax.default_matmul_precision("highest"):
        results = {"settings": dataclasses.asdict(sizes), **measure(sizes)}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(study, blocks, FOLDER, seeds=5, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
