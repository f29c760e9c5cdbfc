"""python -m experiments.studies.complexity [--config=configs/complexity.py] [--out=DIR]
    [--config.causal=True] [--config.heads=8]

Table 1 of Vaswani et al. 2017 for every mixer: what is claimed of work, of steps in a row and of
paths, beside what jaxprs and Jacobians say. Writes results.json, README.md and the figure.
--out=experiments/studies/complexity renews the study itself.
"""

import sys
import time
from pathlib import Path

import jax
from absl import flags

from experiments import cli, redact
from experiments.stdout import tell
from experiments.studies import record
from experiments.studies.complexity import settings as settings_file
from experiments.studies.complexity.figures import figures
from experiments.studies.complexity.measure import measure
from experiments.studies.complexity.tables import blocks

FOLDER = Path(__file__).parent


def define(values: flags.FlagValues) -> None:
    config, out = "configs/complexity.py", f"runs/studies/{FOLDER.name}"
    flags.DEFINE_string("config", config, "the mixers and their lengths", flag_values=values)
    flags.DEFINE_string("out", out, "the folder to write to", flag_values=values)


def main(arguments=None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments

    def run(values: flags.FlagValues, settings: settings_file.Settings) -> None:
        start, out = time.monotonic(), record.made(Path(values.out), FOLDER)
        rows = {}
        with jax.default_matmul_precision("highest"):
            for name in settings.names:
                tell(name)
                rows[name] = measure(settings, name)
        command = redact.command(f"experiments.studies.{FOLDER.name}", arguments)
        found = {"settings": settings_file.plain(settings), "mixers": rows}
        results = {"run": record.about(command, time.monotonic() - start)} | found
        record.write(out, FOLDER, record.rounded(results), blocks, figures(results))
        tell(f"written: {out / 'README.md'}, results.json and the figure")

    return cli.main(define, run, load=settings_file.read, usage=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
