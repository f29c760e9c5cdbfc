"""Parity of 20 to 40 bits, asked once at the end: what soft attention does not find (Hahn 2020).

python -m experiments.train --config=configs/parity.py:softmax --workdir=runs/parity

Two CPU cores (AMD EPYC, shared with much other work), seed 0: 230 s, 3.7 steps/s; not learned, as
was to be expected: test accuracy 49.9% after 400 steps, 75,330 parameters, no length better than
54.0% (chance 50%, majority class 53.6%). No other mechanism was tried.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("parity", validation=1000, test=1000),
        "model": {
            "attention": mechanism(arg),
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "sinusoidal",
        },
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 64, "eval_every": 100, "save_every": 200},
    }
