"""python -m experiments.studies.lra [--out=DIR] [--seeds=3] [--steps=300]

Do Long Range Arena's models rank as in its paper, at a length that two cores can train? Trains its
eleven models and modern ones on tasks cut down (`Settings.tasks`), with the same fields and with as
many parameters; writes results.json, README.md and the figures;
--out=experiments/studies/lra renews the study itself. Runs that are finished, in runs/studies/lra,
are not run again, and those that failed only with --retry_failed.
"""

import dataclasses
import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.lra.figures import figures
from experiments.studies.lra.ranks import ranked
from experiments.studies.lra.runs import Settings, measure
from experiments.studies.lra.tables import blocks

FOLDER = Path(__file__).parent
CELLS = Path("runs/studies/lra")


def study(seeds: int, steps: int, **changes):
    """(results, figures)."""
    settings = Settings(seeds=seeds, steps=steps, **changes)
    tasks = measure(settings, CELLS)
    for name, found in tasks.items():
        found["ranks"] = {key: ranked(name, rows) for key, rows in found["settings"].items()}
    runs = sorted({one for found in tasks.values() for one in found.pop("trained")})
    results = {"settings": dataclasses.asdict(settings), "tasks": tasks, "trained": runs}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(
        study, blocks, FOLDER, seeds=3, steps=300, cells=CELLS, usage=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
