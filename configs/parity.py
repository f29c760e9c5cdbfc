"""Parity of 20 to 40 bits, asked once at the end: what no model here finds by itself (Hahn 2020),
and what one that can hold it does at once after `configs/modular.py`, which asks at every bit.

python -m experiments.train --config=configs/parity.py:lstm --workdir=runs/parity
python -m experiments.train --config=configs/parity.py:lstm --workdir=runs/parity_after \\
    --config.init_from=runs/modular

TODO
"""

from experiments.config import mechanism, task

MIXING = {
    "softmax": mechanism("softmax"),
    "positive": mechanism("gated_delta_net"),
    "negative": mechanism("gated_delta_net", negative_eigenvalues=True),
    "lstm": mechanism("lstm"),
}


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("parity", validation=1000, test=1000),
        "model": {
            "attention": MIXING[arg],
            "causal": True,
            "pooling": "last",
            "layers": 2,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "sinusoidal" if arg == "softmax" else "none",
        },
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 64, "eval_every": 100, "save_every": 200},
    }
