"""Thirty-two symbols and the same again: a state has to hold them all (Jelassi et al. 2024).

python -m experiments.train --config=configs/copy.py:softmax --workdir=runs/copy

Two CPU cores (AMD EPYC, shared with much other work), seed 0, test accuracy after 400 steps (chance
3.3%; 20.6% by counting: always the symbol with the most occurrences left):

    softmax           100.0%    47 s (12 s compiling)   13.6 steps/s   70,688 parameters
    linear             24.7%   109 s (19 s compiling)    5.2 steps/s   70,688 parameters
    gated_delta_net     9.7%   284 s (39 s compiling)    1.8 steps/s   81,488 parameters

softmax was there at step 100; the other two were still improving. The load of the other work
differed between the runs, so the times cannot be compared.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("copy", validation=1000, test=1000),
        "model": {
            "attention": mechanism(arg),
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "rotary",
        },
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 64, "eval_every": 100, "save_every": 200},
    }
