"""The runs of the study: those of the two configs, on shorter rows."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from experiments import provenance, quantities, train
from experiments.cells import Cells
from experiments.config_file import read_sweep
from experiments.errors import LabError
from experiments.report.data import summary
from experiments.stdout import tell
from experiments.studies.record import trained
from experiments.sweep import Planned, plan

CONFIGS = ("recall_state", "recall_families")
EXACT = "softmax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`fields` of the configs that are changed for the time of two cores."""

    seeds: int = 1
    steps: int = 1000
    fields: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {
            "task.length": 32,
            "task.vocab_size": 64,
            "train.batch_size": 64,
            "train.eval_every": 200,
        }
    )
    families: tuple[str, ...] = ()  # all if empty

    def planned(self) -> list[Planned]:
        """Seed by seed; what both configs have, once."""
        runs: dict[tuple, Planned] = {}
        fields = self.fields | {"train.steps": self.steps, "train.save_every": self.steps}
        for seed in range(self.seeds):
            changes = [f"--config.{k}={v}" for k, v in (fields | {"seed": seed}).items()]
            for name in CONFIGS:
                for p in plan(read_sweep(str(provenance.ROOT / f"configs/{name}.py"), changes)):
                    if not self.families or family(p) in self.families:
                        key = family(p), quantities.state_bytes(p.experiment), seed
                        runs.setdefault(key, p)
        return list(runs.values())


def family(p: Planned) -> str:
    """The mechanism behind the short convolution."""
    return p.config["model"]["attention"][-1]["name"]


def measure(s: Settings, folder: Path) -> dict[str, Any]:
    """Test accuracies [seed] by family and bytes of state, of the checkpoint best on validation;
    what has no result, with its error. Raises LabError if nothing has one."""
    cells = Cells(folder, tuple(s.planned()))
    cells.work(functools.partial(train.run, progress=False), "", tell)
    found: dict[str, dict[str, list[float]]] = {}
    missing = {}
    for p, cell in zip(cells.planned, cells.found(), strict=True):
        if cell.result is None:
            missing[p.name] = cell.error
            continue
        state = str(quantities.state_bytes(p.experiment))
        scores = found.setdefault(family(p), {}).setdefault(state, [])
        scores.append(cell.result["test"]["accuracy"])
    if not found:
        why = summary(next(iter(missing.values())))
        raise LabError(f"none of the {len(missing)} runs in {folder} has a result: {why}")
    task = cells.planned[0].experiment.posed
    told = {"test rows": task.size("test"), "baselines": task.baselines()}
    told["trained"] = trained(map(cells.folder, cells.planned))
    return {"accuracy": found, "without result": missing, **told}
