"""python -m experiments.studies.pretraining [--out=DIR] [--seeds=3] [--steps=300]

Does pretraining on a task's own inputs change how variants compare on it? Trains from scratch, and
from parameters that first learned to fill in hidden inputs; writes results.json, README.md and the
figure; --out=experiments/studies/pretraining renews the study itself. Runs that are finished, in
runs/studies/pretraining/cells, are not run again.
"""

import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.pretraining.figures import figures
from experiments.studies.pretraining.runs import Settings, measure
from experiments.studies.pretraining.tables import blocks

FOLDER = Path(__file__).parent
CELLS = Path("runs/studies/pretraining/cells")


def main(arguments=None) -> int:
    study = record.study(Settings, lambda settings: measure(settings, CELLS), figures)
    return record.main(
        study, blocks, FOLDER, seeds=3, steps=300, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
