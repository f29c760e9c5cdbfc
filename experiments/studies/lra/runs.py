"""The runs of the study: two tasks of Long Range Arena cut down, its models in two settings."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import quantities, train
from experiments.alike import NEAR, alike
from experiments.cells import Cells
from experiments.config import task
from experiments.fairness import Fairness
from experiments.stdout import tell
from experiments.studies.lra.published import MODERN, models, variants
from experiments.studies.lra.trees import with_trees
from experiments.studies.record import trained
from experiments.sweep import Planned, firsts
from experiments.tasks.base import Task
from experiments.validation import from_dict

AS_PUBLISHED, EQUAL_SIZE = SETTINGS = ("as published", "equal size")


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A task at a length for two cores, and its models' settings at that length."""

    task: dict[str, Any]
    model: dict[str, Any]  # pooling is the published one
    sizes: dict[str, Any]
    batch_size: int
    rate: float
    seeds: dict[str, int]  # of each model at most, in each setting: what there was time for
    longer: int = 1  # times the steps
    baselines: Callable[[Task], dict[str, float]] = lambda posed: posed.baselines()


TASKS = {
    "listops": Reduced(
        task("listops", min_length=10, max_length=64, train=20_000, validation=1_000, test=2_000),
        {"layers": 2, "width": 64, "mlp_width": 128, "pooling": "cls"},
        dict(block=8, sparse=8, summary=2, window=8, keys=16, features=32, buckets=8, chunk=8)
        | dict(bigbird=(8, 1, 1)),
        batch_size=32,
        rate=2e-3,
        seeds={AS_PUBLISHED: 3, EQUAL_SIZE: 3},
    ),
    "pathfinder": Reduced(
        task("pathfinder_patches", resolution=32, patch=4, dashes=6, train=100_000, test=2_000),
        {"layers": 4, "width": 64, "mlp_width": 128, "pooling": "mean"}
        | {"positions": "grid", "columns": 8},
        dict(block=8, sparse=8, summary=2, window=8, keys=16, features=32, buckets=8, chunk=8)
        | dict(bigbird=(8, 1, 1)),
        batch_size=64,
        rate=1e-3,
        seeds={AS_PUBLISHED: 3, EQUAL_SIZE: 3},
        longer=7,
        baselines=with_trees,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """`steps` are ListOps's; a run of another number of seeds is the same run."""

    seeds: int = 3
    steps: int = 300
    tasks: tuple[str, ...] = tuple(TASKS)
    models: tuple[str, ...] = (*models(), *MODERN)

    def planned(self, name: str) -> list[Planned]:
        """Seed by seed: each model with the same fields, as Long Range Arena's are."""
        reduced = TASKS[name]
        steps = reduced.longer * self.steps
        first = {
            "task": reduced.task,
            "model": {"positions": "learned", **reduced.model},
            "optimizer": {
                "learning_rate": reduced.rate,
                "warmup_steps": max(1, steps // 10),
                "weight_decay": 0.05,
            },
            "train": {
                "steps": steps,
                "batch_size": reduced.batch_size,
                "eval_every": max(1, steps // 3),
                "save_every": steps,
            },
        }
        changes = variants(**reduced.sizes)
        start = {model: Planned(model, from_dict(first)) for model in self.models}
        one = {model: start[model].having(changes[model]) for model in self.models}
        return [one[m].having({"seed": seed}) for seed in range(self.seeds) for m in self.models]


def equal_size(planned: list[Planned], folder: Path) -> list[Planned]:
    """The runs with as many parameters as the first: what is within 2% of it as it stands, and the
    others with another width of their MLPs, but for what is larger without one."""
    alike_already = near(planned)
    others = [p for p in planned if p.variant not in alike_already]
    solved = alike([planned[0], *others], Fairness(match="params"), folder)
    possible = near(solved)
    made = {(p.variant, p.experiment.seed): p for p in solved[1:]}
    found = [made.get((p.variant, p.experiment.seed), p) for p in planned]
    return [p for p in found if p.variant in alike_already | possible]


def near(planned: list[Planned]) -> set[str]:
    """The variants with as many parameters as the first, within 2%."""
    size = {variant: quantities.params(p.experiment) for variant, p in firsts(planned).items()}
    first = size[planned[0].variant]
    return {variant for variant, n in size.items() if abs(n / first - 1) <= NEAR}


def measure(s: Settings, workdir: Path) -> dict[str, Any]:
    return {name: measured(s, name, workdir / name) for name in s.tasks}


def measured(s: Settings, name: str, folder: Path) -> dict[str, Any]:
    """Trains what has not ended yet. Of each setting that the task has seeds for and each model the
    test accuracies, by seed, of the checkpoint best on validation; why others have none; the
    accuracy of what is simpler."""
    planned = s.planned(name)
    plans = {}
    for key, most in TASKS[name].seeds.items():
        plan = planned if key == AS_PUBLISHED else equal_size(planned, folder)
        plans[key] = [p for p in plan if p.experiment.seed < most]
    cells = Cells(folder, tuple({p.name: p for plan in plans.values() for p in plan}.values()))
    cells.work(functools.partial(train.run, progress=False), "", tell)
    found = {cell.name: cell for cell in cells.found()}
    done = [cell.result for cell in found.values() if cell.result]
    return {
        "settings": {name: rows(plan, found) for name, plan in plans.items()},
        "without result": {name: cell.error for name, cell in found.items() if cell.error},
        "baselines": TASKS[name].baselines(planned[0].experiment.posed),
        "steps": planned[0].experiment.train.steps,
        "test rows": planned[0].experiment.posed.size("test"),
        "runs": len(found),
        "seconds": sum(result["wall_seconds"] for result in done),
        "trained": trained(map(cells.folder, cells.planned)),
    }


def rows(plan: list[Planned], found: dict[str, Any]) -> dict[str, Any]:
    """By model; one of which no run ended is not there."""
    table: dict[str, Any] = {}
    for p in plan:
        if result := found[p.name].result:
            if p.variant not in table:
                size = quantities.params(p.experiment)
                of_all = {"matched": p.notes.get("matched"), "parameters": size}
                table[p.variant] = {"seeds": [], "accuracy": [], **of_all}
            table[p.variant]["seeds"].append(p.experiment.seed)
            table[p.variant]["accuracy"].append(result["test"]["accuracy"])
    return table
