"""Parity of 20 to 40 bits, asked once at the end: none of four models learns it from scratch (Hahn
2020); those that can hold it learn it after `configs/modular.py`, which asks at every bit.

python -m experiments.train --config=configs/parity.py:lstm --workdir=runs/parity
python -m experiments.train --config=configs/modular.py:lstm --workdir=runs/parity-each-bit
python -m experiments.train --config=configs/parity.py:lstm --workdir=runs/parity-after \
    --config.init_from=runs/parity-each-bit

Two CPU cores (AMD EPYC, shared with much other work), seed 0, test accuracy in % after 400 steps
(chance 50, majority class 53.6); negative and positive are gated_delta_net with and without
negative eigenvalues:

    mixing      at once   after modular   modular itself   parameters
    softmax        50.6            50.3             62.3       75,330
    positive       48.4            50.3             71.3       86,130
    negative       50.1           100.0            100.0       86,130
    lstm           50.3           100.0            100.0      116,802

A run of lstm takes 20 s, of softmax 37, of negative 157 (3.1 steps/s). With rows of 1 bit and more
(min_length=1), those of up to 10 bits reached 68.4% (lstm) and 84.0 (negative) in 400 steps, longer
ones stayed at chance.
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
