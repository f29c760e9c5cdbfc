"""python -m experiments.studies.extrapolation [--out=DIR] [--seeds=3] [--steps=600]

Which encodings of positions carry over to sequences longer than those trained on? Trains
configs/extrapolation.py under each, and stretches the rotary ones after; writes results.json,
README.md and the figure; --out=experiments/studies/extrapolation renews the study itself. Runs that
are finished, in runs/studies/extrapolation, are not run again.
"""

import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.extrapolation.figures import figures
from experiments.studies.extrapolation.runs import Settings, measure
from experiments.studies.extrapolation.tables import blocks

FOLDER = Path(__file__).parent
CELLS = Path("runs/studies/extrapolation")


def main(arguments=None) -> int:
    study = record.study(Settings, lambda settings: measure(settings, CELLS), figures)
    return record.main(
        study, blocks, FOLDER, seeds=3, steps=600, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
