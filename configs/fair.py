"""Six ways to attend on real 8x8 digits, with equal parameters and a learning rate for each.

python -m experiments.compare --config=configs/fair.py --workdir=runs/fair --processes=2
"""

from experiments.config import mechanism, task

ATTENTION = [
    mechanism("softmax"),
    mechanism("linear"),
    mechanism("performer", features=64),
    mechanism("window", left=8, right=8),
    mechanism("bigbird", block_size=8, random=1, global_blocks=1),
    mechanism("linformer", features=16),
]
SEEDS = 3

match = "params"
search = {"optimizer.learning_rate": [1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2]}


def get_config():
    model = {"layers": 2, "width": 64, "heads": 4, "mlp_width": 128, "positions": "learned"}
    return {
        "task": task("digits"),
        "model": model,
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 30, "weight_decay": 0.05},
        "train": {"steps": 600, "batch_size": 32, "eval_every": 100, "save_every": 600},
    }


def sweep():
    for attention in ATTENTION:
        for seed in range(SEEDS):
            yield {"model.attention": attention, "seed": seed}
