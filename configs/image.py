"""Grey CIFAR-10 with Long Range Arena's model and schedule (Tay et al. 2020).

    python -m experiments.train --config=configs/image.py:linear --workdir=runs/image \
        --config.task.data_dir=FOLDER

FOLDER is cifar-10-batches-bin of https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, unpacked.
Not run: it needs those files and an accelerator. These are the sizes that the published models
start from; most have their own, which `experiments.compare` gives them
(`experiments.studies.lra.published.SIZES`).

`experiments.compare` in place of `experiments.train` runs the paper's eleven models and modern
ones. Accuracies in % published there, one seed (README of google-research/long-range-arena): 42.44
softmax, 41.46 local, 44.24 sparse, 42.22 longformer, 38.56 linformer, 38.07 reformer, 41.23
sinkhorn, 41.61 synthesizer, 40.83 bigbird, 42.34 linear, 42.77 performer.
"""

from experiments.config import task
from experiments.studies.lra.published import attention, variants


def get_config(arg="linear"):
    return {
        "seed": 0,
        "task": task("image"),
        "model": {
            "attention": attention(arg, dropout=0.2),
            "layers": 1,
            "width": 32,
            "heads": 1,
            "mlp_width": 64,
            "positions": "learned",
            "pooling": "cls",
            "dropout": 0.3,
        },
        "optimizer": {
            "learning_rate": 5e-4,
            "schedule": "cosine",
            "warmup_steps": 175,
            "weight_decay": 0.0,
            "b2": 0.98,
            "eps": 1e-9,
            "clip_norm": None,
        },
        "train": {
            "steps": 35_000,
            "batch_size": 256,
            "eval_batch_size": 256,
            "eval_every": 1_750,
        },
    }


def sweep():
    yield from variants("image", block=64, chunk=103, dropout=0.2).values()
