"""Real 8x8 digits, pixel by pixel.

python -m experiments.train --config=configs/digits.py:softmax --workdir=runs/digits

Two CPU cores (AMD EPYC, shared), seed 0: 27 s, 20 steps/s; validation accuracy 95.9%, test 92.2%
at the best step, 200, with 81,418 parameters (chance 10%, majority class 10.4%).
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("digits"),
        "model": {
            "attention": mechanism(arg),
            "layers": 2,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "learned",
            "dropout": 0.1,
        },
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 64, "eval_every": 50, "save_every": 200},
    }
