"""ListOps with Long Range Arena's own data rule, model and schedule (Tay et al. 2020).

python -m experiments.train --config=configs/listops.py:linear --workdir=runs/listops

Not run in full here: it needs an accelerator; experiments/studies/lra is a small version of it.
Reading the root operator alone gives 36.3%.

Weight decay spares embeddings, norms and biases (`experiments.optimizer`); that of the published
code shrinks every parameter.

`experiments.compare` in place of `experiments.train` runs the paper's eleven models and modern
ones. Accuracies in % published there, one seed (README of google-research/long-range-arena): 36.37
softmax, 15.82 local, 17.07 sparse, 35.63 longformer, 35.70 linformer, 37.27 reformer, 33.67
sinkhorn, 36.99 synthesizer, 36.05 bigbird, 16.13 linear, 18.01 performer.
"""

from experiments.config import task
from experiments.studies.lra.published import attention, variants


def get_config(arg="linear"):
    return {
        "seed": 0,
        # The generator's rule; data_dir="..." reads the published files instead.
        "task": task("listops", min_length=500, max_length=2000),
        "model": {
            "attention": attention(arg, dropout=0.1),
            "layers": 4,
            "width": 512,
            "heads": 8,
            "mlp_width": 1024,
            "pooling": "cls",
            "dropout": 0.1,
        },
        "optimizer": {
            "learning_rate": 0.05,
            "schedule": "rsqrt",
            "warmup_steps": 1000,
            "weight_decay": 0.1,
            "b2": 0.98,
            "eps": 1e-9,
            "clip_norm": None,
        },
        "train": {"steps": 5000, "batch_size": 32, "eval_batch_size": 32, "eval_every": 500},
    }


def sweep():
    yield from variants(chunk=200, dropout=0.1).values()
