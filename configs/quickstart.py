"""Six ways to attend, on real 8x8 digits read pixel by pixel: the whole path in minutes.

    python -m experiments.compare --config=configs/quickstart.py --workdir=runs/quickstart

Some minutes on two CPU cores. Results and costs are README's first table: two seeds cannot separate
the variants. The learning rate was tried on softmax and linear only.
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


def get_config():
    model = {"layers": 2, "width": 64, "heads": 4, "mlp_width": 128, "positions": "learned"}
    return {
        "task": task("digits"),
        "model": model,
        "optimizer": {"learning_rate": 6e-3, "warmup_steps": 30, "weight_decay": 0.05},
        "train": {"steps": 600, "batch_size": 32, "eval_every": 100, "save_every": 600},
    }


def sweep():
    for attention in ATTENTION:
        for seed in range(2):
            yield {"model.attention": attention, "seed": seed}
