"""A train step of each model of the paper's table 2, on texts of each of its lengths."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import Experiment, mechanism
from experiments.config_file import read
from experiments.provenance import ROOT
from experiments.quantities import Step, in_turns
from experiments.stdout import tell
from experiments.studies.lra.published import models
from experiments.studies.lra_speed.published import LENGTHS, SPEED
from experiments.validation import from_dict, to_dict

DRAWN, BLOCKS = "softmax", "softmax in blocks"  # the T x T matrix whole, as there, and never whole
ROWS = 2  # of each split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The model is that of configs/text.py but for `fields`."""

    steps: int = 7  # of each model and length
    seconds: float = 150.0  # of a length at most, after three steps of each
    lengths: tuple[int, ...] = LENGTHS
    models: tuple[str, ...] = (DRAWN, BLOCKS, *SPEED)
    # a batch of 32 on 16 chips; without dropout of weights, which only some of the models have
    fields: dict[str, Any] = dataclasses.field(default_factory=lambda: {"train.batch_size": 2})

    def experiment(self, name: str, length: int, folder: Path) -> Experiment:
        of_data = {"data_dir": folder, "max_length": length, "train": ROWS}
        fields = {f"task.{field}": x for field, x in of_data.items()} | self.fields
        fields |= {"task.validation": ROWS, "task.test": ROWS}
        changes = [f"--config.{field}={x}" for field, x in fields.items()]
        config = to_dict(read(f"{ROOT}/configs/text.py:linear", changes))
        config["model"]["attention"] = attention(name, length)
        return from_dict(config)


def attention(name: str, length: int) -> dict[str, Any]:
    """As published; reformer's chunk a tenth of the text."""
    if name == DRAWN:
        return mechanism("softmax", implementation="materialized")
    return models(chunk=max(1, length // 10))["softmax" if name == BLOCKS else name]


def reviews(folder: Path, length: int) -> None:
    """Texts of random letters in place of the published ones, the longest two of this length."""
    random = np.random.default_rng(0)
    for name, rows in (("train", 2 * ROWS), ("test", ROWS)):
        texts = random.integers(97, 123, (rows, length), np.uint8)
        lines = [f"{row % 2}\t{x.tobytes().decode()[row // 2 :]}\n" for row, x in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("".join(lines))


def measure(s: Settings) -> dict[str, Any]:
    """{length: {model: milliseconds of a step, half of them in low..high, and its peak bytes}}."""
    found = {}
    for length in s.lengths:
        with tempfile.TemporaryDirectory() as folder:
            reviews(Path(folder), length)
            steps = {name: Step(s.experiment(name, length, Path(folder))) for name in s.models}
            times = in_turns(steps, rounds=s.steps, seconds=s.seconds)
        found[str(length)] = {
            name: {
                "milliseconds": x.median,
                "low": x.low,
                "high": x.high,
                "peak bytes": steps[name].program.peak_bytes,
            }
            for name, x in times.items()
        }
        shown = ", ".join(f"{name} {x.median:,.0f}" for name, x in times.items())
        tell(f"{length} bytes: {shown} ms")
    return found
