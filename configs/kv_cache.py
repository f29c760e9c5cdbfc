"""What must be kept of each token while decoding: all heads, grouped heads, one head, or latents.

python -m experiments.compare --config=configs/kv_cache.py --workdir=runs/kv_cache \\
    --config.task.path=tinyshakespeare.txt
"""

from experiments.config import mechanism, task


def get_config():
    return {
        "seed": 0,
        "task": task("bytes", length=64),
        "model": {
            "attention": mechanism("softmax"),
            "causal": True,
            "layers": 4,
            "width": 128,
            "heads": 4,
            "mlp_width": 512,
            "positions": "learned",
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-4,
            "warmup_steps": 100,
            "weight_decay": 0.1,
            "b2": 0.99,
        },
        "train": {
            "steps": 2000,
            "batch_size": 12,
            "eval_batch_size": 32,
            "eval_every": 500,
            "save_every": 1000,
        },
    }


def sweep():
    kept = (("softmax", 4), ("softmax", 2), ("latent", 2), ("softmax", 1), ("latent", 1))
    for name, kv_heads in kept:
        for seed in range(3):
            yield {
                "model.attention": mechanism(name),
                "model.kv_heads": kv_heads,
                "seed": seed,
            }
