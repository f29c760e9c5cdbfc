"""Recall of four key-value pairs out of a vocabulary of 2048 (MQAR, Arora et al. 2023).

python -m experiments.train --config=configs/recall.py:softmax --workdir=runs/recall

Two CPU cores (AMD EPYC, shared), seed 0: 56 s, 7.9 steps/s; test accuracy 99.35% at step 400,
297,344 parameters (chance 0.1%, any value of the prefix 25%, the k-th value for the k-th question
28.1%). The vocabulary is smaller than the paper's 8192, which is not learned in 400 steps without
tied embeddings.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("recall", vocab_size=2048, length=64, pairs=(4,)),
        "model": {
            "attention": mechanism(arg),
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "rotary",
        },
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 40, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 256, "eval_every": 100, "save_every": 200},
    }
