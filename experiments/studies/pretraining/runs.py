"""The runs of the study, each an experiment of the lab as a config file would say it."""

import dataclasses
from pathlib import Path
from typing import Any

from experiments import train
from experiments.config import Experiment, mechanism, task
from experiments.stdout import tell
from experiments.studies.record import trained
from experiments.validation import fingerprint, from_dict

WAYS = ("from scratch", "from scratch, twice as long", "pretrained")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`steps` of pretraining, and as many of training after it."""

    seeds: int = 3
    steps: int = 300
    variants: tuple[str, ...] = ("softmax", "linear")
    batch_size: int = 32
    width: int = 64
    rate: float = 3e-3
    mask_rate: float = 0.3

    def experiment(self, variant: str, seed: int, **changes: Any) -> Experiment:
        return from_dict(
            {
                "seed": seed,
                "task": task("digits"),
                "model": {
                    "attention": mechanism(variant),
                    "layers": 2,
                    "width": self.width,
                    "mlp_width": 2 * self.width,
                    "positions": "learned",
                },
                "optimizer": {
                    "learning_rate": self.rate,
                    "warmup_steps": max(1, self.steps // 10),
                    "weight_decay": 0.05,
                },
                "train": {"steps": self.steps, "batch_size": self.batch_size, "eval_every": 50},
            }
            | changes
        )


def measure(s: Settings, cells: Path) -> dict:
    """Test accuracies [seed] of each variant and way, of the checkpoint best on validation."""
    found: dict[str, dict[str, list[float]]] = {}
    runs: list[Path] = []
    for variant in s.variants:
        found[variant] = {way: [] for way in WAYS}
        for seed in range(s.seeds):
            for way in WAYS:
                accuracy, folders = _trained(s, variant, seed, way, cells)
                runs += folders
                found[variant][way].append(accuracy)
                tell(f"{variant}, seed {seed}, {way}: {accuracy:.3f}")
    return {"accuracy": found, "trained": trained(runs)}


def _trained(
    s: Settings, variant: str, seed: int, way: str, cells: Path
) -> tuple[float, list[Path]]:
    changes: dict[str, Any] = {}
    folders: list[Path] = []
    if way == "pretrained":
        hidden = {"objective": "masked", "mask_rate": s.mask_rate}
        first = s.experiment(variant, seed, **hidden)
        folders.append(_run(first, variant, cells)[0])
        changes["init_from"] = str(folders[0])
    elif way != "from scratch":
        once = s.experiment(variant, seed).train
        changes["train"] = {**dataclasses.asdict(once), "steps": 2 * s.steps}
    folder, result = _run(s.experiment(variant, seed, **changes), variant, cells)
    return result["test"]["accuracy"], [*folders, folder]


def _run(experiment: Experiment, variant: str, cells: Path) -> tuple[Path, dict[str, Any]]:
    folder = cells / f"{variant}-{fingerprint(experiment)}"
    return folder, train.run(experiment, folder, progress=False)
