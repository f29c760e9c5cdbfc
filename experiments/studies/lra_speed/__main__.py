"""python -m experiments.studies.lra_speed [--out=DIR] [--steps=7]

Do the relative speed and memory of Long Range Arena's models agree with its paper? Times as
many train steps of each on texts of 1,000 to 4,000 bytes; writes results.json, README.md and the
figure; --out=experiments/studies/lra_speed renews the study itself. Wants an idle machine.
"""

import dataclasses
import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.lra_speed.figures import figures
from experiments.studies.lra_speed.measure import Settings, measure
from experiments.studies.lra_speed.tables import blocks

FOLDER = Path(__file__).parent


def study(steps: int):
    """(results, figures)."""
    settings = Settings(steps=steps)
    results = {"settings": dataclasses.asdict(settings), "lengths": measure(settings)}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(study, blocks, FOLDER, steps=7, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
