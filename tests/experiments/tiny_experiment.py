"""An experiment of a second, and what two runs of it must have in common."""

import hashlib
import json
from pathlib import Path

from experiments.config import Experiment
from experiments.validation import from_dict

STEPS = 12
TINY = {
    "task": {
        "name": "recall",
        "vocab_size": 32,
        "length": 12,
        "pairs": [1, 2],
        "validation": 20,
        "test": 20,
    },
    "model": {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8, "causal": True, "dropout": 0.1},
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1},
    "train": {
        "steps": STEPS,
        "batch_size": 8,
        "eval_batch_size": 16,
        "eval_every": 4,
        "save_every": 5,
        "keep": 2,
    },
}


def tiny(**sections: dict) -> Experiment:
    return from_dict({**TINY, **{k: {**TINY.get(k, {}), **v} for k, v in sections.items()}})


def write_config(path: Path, text: str = "") -> Path:
    path.write_text(f"def get_config():\n    return {TINY!r}\n{text}")
    return path


def rows(workdir: Path) -> list[dict]:
    """The metrics but for the times."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def state_digest(workdir: Path, experiment: Experiment | None = None) -> str:
    """Of every byte of the last parameters and optimizer state."""
    import jax
    import numpy as np

    from experiments.checkpoint import Checkpoints
    from experiments.learner import Learner

    experiment = experiment or tiny()
    like = jax.eval_shape(Learner(experiment).init)
    leaves = jax.tree.leaves(Checkpoints.of(workdir, experiment).load(STEPS, like))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()
