"""Numbers in words to digits, "four hundred and two" to "402", character by character.

python -m experiments.train --config=configs/numbers.py --workdir=runs/numbers

Two CPU cores (AMD EPYC, shared with other work), seed 0: 386 s (49 s of them
compiling), 2.7 steps/s; test exact match 98.1% (99.5% of numbers without a 0, 95.9% of those with
one), 91,660 parameters.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("numbers"),
        "model": {
            "attention": mechanism(arg),
            "layers": 1,
            "width": 64,
            "heads": 4,
            "mlp_width": 128,
            "positions": "learned",
        },
        "optimizer": {"learning_rate": 4e-3, "warmup_steps": 50},
        "train": {"steps": 800, "batch_size": 64, "eval_every": 200, "save_every": 800},
    }
