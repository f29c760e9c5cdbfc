"""TPU_LIBRARY_PATH=DIR/libtpu/libtpu.so python -m experiments.studies.tpu [--out=DIR]

What does each mechanism need on a TPU? Compiles all of them for one that need not be there; writes
results.json, README.md and the figure. --out=experiments/studies/tpu renews the study itself. The
compiler: pip install --no-deps --target=DIR 'libtpu==0.0.42.*'
"""

import dataclasses
import sys
from pathlib import Path

from experiments.studies import record
from experiments.studies.tpu.figures import figures
from experiments.studies.tpu.measure import Settings, measure
from experiments.studies.tpu.tables import blocks

FOLDER = Path(__file__).parent


def study():
    """(results, figures)."""
    settings = Settings()
    results = {"settings": dataclasses.asdict(settings), "mechanisms": measure(settings)}
    return results, figures(results)


def main(arguments=None) -> int:
    return record.main(study, blocks, FOLDER, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
