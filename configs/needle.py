"""One fact in 32 tokens, asked for at the end, by how deep it lies (after Kamradt 2023).

python -m experiments.train --config=configs/needle.py:softmax --workdir=runs/needle

Two CPU cores (AMD EPYC, shared with much other work), seed 0: 129 s, 5.1 steps/s; test accuracy
100% at step 300 and in each of five bands of depth, 35,216 parameters (chance 12.5%, the row's most
frequent value 27.0%). With a vocabulary of 64, 128 tokens and batches of 64 it was still at chance
after 216 steps.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("needle", vocab_size=16, length=32, validation=1000, test=1000),
        "model": {
            "attention": mechanism(arg),
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "rotary",
        },
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 128, "eval_every": 100, "save_every": 200},
    }
