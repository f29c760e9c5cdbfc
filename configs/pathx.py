"""Path-X, Pathfinder of 128 x 128 pixels, with Long Range Arena's settings (Tay et al. 2020).

    python -m experiments.train --config=configs/pathx.py:linear --workdir=runs/pathx

They are those of pathfinder128 in lra_benchmarks/image/configs of google-research/long-range-arena,
where every model is at chance. Images are from our own generator, fresh at each step, where theirs
are 160,000; data_dir reads the published ones. Not run: it needs an accelerator.

Unlike there, there is no dropout inside the MLPs.
"""

from experiments.config import task
from experiments.studies.lra.published import attention, variants


def get_config(arg="linear"):
    return {
        "seed": 0,
        "task": task("pathfinder", resolution=128),
        "model": {
            "attention": attention(arg, dropout=0.1),
            "layers": 1,
            "width": 32,
            "heads": 2,
            "head_dim": 8,
            "mlp_width": 32,
            "positions": "learned",
            "dropout": 0.1,
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "schedule": "cosine",
            "warmup_steps": 2_500,
            "weight_decay": 0.0,
            "b2": 0.98,
            "eps": 1e-9,
            "clip_norm": 1.0,
        },
        "train": {
            "steps": 500_000,
            "batch_size": 64,
            "eval_batch_size": 64,
            "eval_every": 2_500,
        },
    }


def sweep():
    yield from variants("", block=64, chunk=1_639, dropout=0.1).values()
