"""Do two papers belong together? Read by bytes, in Long Range Arena's setting (Tay et al. 2020).

    python -m experiments.train --config=configs/retrieval.py:linear --workdir=runs/retrieval \
        --config.task.data_dir=FOLDER

FOLDER is tsv_data of https://storage.googleapis.com/long-range-arena/lra_release.gz, unpacked. Not
run: it needs those files and an accelerator.

Weight decay spares embeddings, norms and biases (`experiments.optimizer`); that of the published
code shrinks every parameter. Its head reads the two vectors alone, this one also their product and
difference, as in later work (`attn.nn.head.pair`).

`experiments.compare` in place of `experiments.train` runs the paper's eleven models and modern
ones. Accuracies in % published there, one seed (README of google-research/long-range-arena): 57.46
softmax, 53.39 local, 59.59 sparse, 56.89 longformer, 52.27 linformer, 53.40 reformer, 53.83
sinkhorn, 54.67 synthesizer, 59.29 bigbird, 53.09 linear, 53.82 performer.
"""

from experiments.config import task
from experiments.studies.lra.published import attention, variants


def get_config(arg="linear"):
    return {
        "seed": 0,
        "task": task("retrieval", max_length=4000),
        "model": {
            "attention": attention(arg, dropout=0.1),
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


def sweep():
    yield from variants(chunk=400, dropout=0.1).values()
