"""Do two papers belong together, by bytes: Long Range Arena's setting (Tay et al. 2020).

    python -m experiments.train --config=configs/retrieval.py:linear --workdir=runs/retrieval \
        --config.task.data_dir=FOLDER

FOLDER is tsv_data of https://storage.googleapis.com/long-range-arena/lra_release.gz, unpacked.
Published there for 5,000 steps: softmax 57.5%, linear 53.1%. Not run: it wants those files and an
accelerator.
"""

from experiments.config import mechanism, task


def get_config(arg="linear"):
    return {
        "seed": 0,
        "task": task("retrieval", max_length=4000),
        "model": {
            "attention": mechanism(arg),
            "layers": 4,
            "width": 128,
            "heads": 4,
            "mlp_width": 512,
            "pooling": "cls",
            "dropout": 0.1,
        },
        "optimizer": {
            "learning_rate": 0.05,
            "schedule": "rsqrt",
            "warmup_steps": 8000,
            "weight_decay": 0.1,
            "b2": 0.98,
            "eps": 1e-9,
            "clip_norm": None,
        },
        "train": {
            "steps": 5_000,
            "batch_size": 32,
            "eval_batch_size": 32,
            "eval_every": 500,
        },
    }
