"""The runs: configs/extrapolation.py under each encoding, and rotary stretched after."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax

from attn.positions import Rotary
from experiments import provenance, train
from experiments.config import Experiment
from experiments.config_file import read
from experiments.evaluate import Answers, load
from experiments.learner import Learner
from experiments.stdout import tell
from experiments.studies.record import trained
from experiments.validation import fingerprint

CONFIG = provenance.ROOT / "configs/extrapolation.py"
ENCODINGS = ("sinusoidal", "learned", "rotary", "xpos", "alibi", "t5", "none")
Slices = dict[str, float]  # accuracies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`changes` are overrides of the config, as on a command line."""

    seeds: int = 3
    steps: int = 600
    encodings: tuple[str, ...] = ENCODINGS
    changes: tuple[str, ...] = ()

    def experiment(self, encoding: str, seed: int) -> Experiment:
        """Scored after the last step alone: a choice among steps would look at longer rows."""
        train = dict.fromkeys(("steps", "eval_every", "save_every"), self.steps)
        fields = {f"train.{name}": value for name, value in train.items()} | {"seed": seed}
        overrides = [f"--config.{name}={value}" for name, value in fields.items()]
        return read(f"{CONFIG}:{encoding}", [*overrides, *self.changes])


def measure(s: Settings, cells: Path) -> dict:
    """Test accuracies [seed] of each encoding by length; and without learning."""
    found: dict[str, dict[str, list[float]]] = {}
    seconds, folders = 0.0, []
    for seed in range(s.seeds):
        for encoding in s.encodings:
            experiment = s.experiment(encoding, seed)
            folder = cells / f"{encoding}-{fingerprint(experiment)}"
            folders.append(folder)
            result = train.run(experiment, folder, progress=False)
            seconds += result["wall_seconds"]
            rows = {encoding: result["test"]["slices"]}
            if encoding == "rotary":
                rows |= dict(stretched(folder))
            for name, slices in rows.items():
                tell(f"seed {seed}, {name}: {slices}")
                for length, accuracy in slices.items():
                    found.setdefault(name, {}).setdefault(length, []).append(accuracy)
    task = experiment.posed
    told = {"test rows": task.size("test"), "baselines": task.baselines(), "seconds": seconds}
    return {"accuracy": found, **told, "trained": trained(folders)}


def stretched(folder: Path) -> Iterator[tuple[str, Slices]]:
    """A trained rotary model with its rates stretched to the longest row, without more training."""
    learner, params, _ = load(folder)
    experiment = learner.experiment
    task, first = experiment.posed, experiment.posed.lengths[0]
    factor = task.length / first
    for name, rotary in {
        "linear": Rotary(scaling="linear", factor=factor),
        "ntk": Rotary(scaling="ntk", factor=factor),
        "yarn": Rotary(scaling="yarn", factor=factor, original_length=first),
    }.items():
        model = dataclasses.replace(experiment.model, rotary=rotary)
        other = Learner(dataclasses.replace(experiment, model=model))
        batch_size = experiment.train.eval_batch_size
        found = Answers.of(jax.jit(other.eval_step), params, task, "test", batch_size)
        yield f"rotary, then {name}", found.scores()["slices"]
