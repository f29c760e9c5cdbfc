"""python -m experiments.studies.pretraining [--out=DIR] [--seeds=3] [--steps=300]

Does pretraining on a task's own inputs change how variants compare on it? Trains from scratch, and
from parameters that first learned to fill in hidden inputs; writes results.json, README.md and the
figure; --out=experiments/studies/pretraining renews the study itself. Runs that are finished, in
runs/studies/pretraining/cells, are not run again.
"""

import dataclasses
import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.pretraining.figures import figures
from experiments.studies.pretraining.runs import Settings, measure
from experiments.studies.pretraining.tables import blocks

FOLDER = Path(__file__).parent
CELLS = Path("runs/studies/pretraining/cells")


def study(seeds: int, steps: int, **changes):
    """(results, figures)."""
    settings = Settings(seeds=seeds, steps=steps, **changes)
    results = {"settings": dataclasses.asdict(settings), **measure(settings, CELLS)}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(
        study, blocks, FOLDER, seeds=3, steps=300, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
