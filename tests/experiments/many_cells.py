"""Comparisons of hundreds of finished cells: few are trained, the others are these under other
settings, each with a result that is sealed for its own configuration."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_experiment import TINY

from experiments import compare, disk, records
from experiments.config_file import read_comparison
from experiments.sweep import Planned, plan

CONFIG = """\"\"\"Tiny cells of two mechanisms.\"\"\"

def get_config():
    return {config!r}

def sweep():
    for name in ("softmax", "linear"):
        for decay in range({decays}):
            for seed in range({seeds}):
                yield {{
                    "model.attention": {{"name": name}},
                    "optimizer.weight_decay": decay / 100,
                    "seed": seed,
                }}
"""
SIZES = {  # learning curves, slices and matrices as large as a small study's
    "task": TINY["task"] | {"length": 64, "pairs": [1, 2, 4, 8]},
    "model": TINY["model"] | {"layers": 2},
    "train": TINY["train"] | {"steps": 300, "eval_every": 30, "save_every": 300},
}


def write_config(path: Path, *, decays: int, seeds: int) -> Path:
    """2 x decays variants."""
    path.write_text(CONFIG.format(config=TINY | SIZES, decays=decays, seeds=seeds))
    return path


def planned(config: Path) -> list[Planned]:
    sweep, _ = read_comparison(str(config))
    return plan(sweep)


def trained(folder: Path) -> Path:
    """A comparison of one real cell for each mechanism, as the command leaves it."""
    config = write_config(folder / "trained.py", decays=1, seeds=1)
    workdir = folder / "trained"
    assert compare.main([f"--config={config}", f"--workdir={workdir}"]) == 0
    return workdir


def leave(source: Path, runs: Sequence[Planned], workdir: Path) -> Path:
    """The cells of `runs`, each a copy of the one of its mechanism."""
    cells = {_mechanism(_json(x / "config.json")): x for x in (source / "cells").glob("*-*")}
    costs = _json(source / "costs.json")["costs"]
    for n, p in enumerate(runs):
        mine, folder = cells[_mechanism(p.config)], workdir / "cells" / p.name
        folder.mkdir(parents=True)
        for name in ("environment.json", "seen.npz"):
            shutil.copy(mine / name, folder / name)
        disk.write_json(folder / "config.json", p.config)
        factor = 1 + (n % 7) / 100
        rows = [row | {"loss": factor * row["loss"]} for row in _rows(mine)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = _json(mine / "result.json")
        score = result["test"] | {"accuracy": factor * result["test"]["accuracy"]}
        result |= {"test": score, "steps_per_second": factor * result["steps_per_second"]}
        body = {k: v for k, v in result.items() if k not in ("config", "sha256")}
        disk.write_json(folder / "result.json", records.sealed(body, p.config))
    found = {p.variant: costs[_mechanism(p.config)] for p in runs}
    disk.write_json(workdir / "costs.json", {"key": "copied", "costs": found})
    return workdir


def _mechanism(config: dict[str, Any]) -> str:
    return config["model"]["attention"]["name"]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _rows(cell: Path) -> list[dict[str, Any]]:
    return records.read_metrics(cell / "metrics.jsonl")
