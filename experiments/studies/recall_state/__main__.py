"""python -m experiments.studies.recall_state [--out=DIR] [--seeds=1] [--steps=1000]

Does what a model recalls grow with the state that it decodes from? Trains the runs of
configs/recall_state.py and configs/recall_families.py on shorter rows; writes results.json,
README.md and the figure; --out=experiments/studies/recall_state renews the study itself. Runs that
are finished, in runs/studies/recall_state, are not run again, and those that failed only with
--retry_failed.
"""

import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.recall_state.figures import figures
from experiments.studies.recall_state.runs import Settings, measure
from experiments.studies.recall_state.tables import blocks

FOLDER = Path(__file__).parent
CELLS = Path("runs/studies/recall_state")


def main(arguments=None) -> int:
    study = record.study(Settings, lambda settings: measure(settings, CELLS), figures)
    return record.main(
        study, blocks, FOLDER, seeds=1, steps=1000, cells=CELLS, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
