"""python -m experiments.studies.conversion [--out=DIR] [--seeds=4] [--steps=400]

Can a trained multi-head encoder be turned into one with fewer key heads? Trains, converts, trains
on, and writes results.json, README.md and the figure; --out=experiments/studies/conversion renews
the study itself.
"""

import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.conversion.figures import figures
from experiments.studies.conversion.tables import blocks
from experiments.studies.conversion.uptraining import Settings, measure

FOLDER = Path(__file__).parent


def main(arguments=None) -> int:
    study = record.study(Settings, measure, figures)
    return record.main(
        study, blocks, FOLDER, seeds=4, steps=400, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
