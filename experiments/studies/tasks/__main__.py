"""python -m experiments.studies.tasks [--out=DIR] [--seeds=3] [--steps=4000]

What do small models learn of each task in minutes on two cores? Trains the configs that are made
for that, each with --seeds seeds and each run at most --steps; writes results.json, README.md and
the figures; --out=experiments/studies/tasks renews the study itself. Runs that are finished, in
runs/studies/tasks/cells, are not run again, and those that failed only with --retry_failed.
"""

import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.tasks.figures import figures
from experiments.studies.tasks.runs import Settings, measure
from experiments.studies.tasks.tables import blocks

FOLDER = Path(__file__).parent
WORKDIR = Path("runs/studies/tasks")


def main(arguments=None) -> int:
    study = record.study(Settings, lambda settings: measure(settings, WORKDIR), figures)
    return record.main(
        study,
        blocks,
        FOLDER,
        seeds=3,
        steps=4000,
        cells=WORKDIR,
        usage=__doc__,
        arguments=arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
