"""Real 8x8 digits as patches of 2x2 pixels with positions of a grid (a small ViT, Dosovitskiy et
al. 2020, arXiv:2010.11929).

python -m experiments.train --config=configs/digit_patches.py:softmax --workdir=runs/patches
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("digit_patches"),
        "model": {
            "attention": mechanism(arg),
            "layers": 2,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "grid",
            "columns": 4,
            "dropout": 0.1,
        },
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 64, "eval_every": 50, "save_every": 200},
    }
