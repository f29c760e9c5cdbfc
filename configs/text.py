"""Film reviews by bytes with Long Range Arena's model and schedule (Tay et al. 2020).

    python -m experiments.train --config=configs/text.py:linear --workdir=runs/text \
        --config.task.data_dir=FOLDER

FOLDER is aclImdb of https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, unpacked, or
holds train.tsv and test.tsv: lines of a label (0, neg, 1 or pos), a tab and a text, in UTF-8. The
paper trains on all 25,000 reviews and selects on the test set; here 2,500 are held out for that. A
folder with another number of reviews is refused, as it may be only partly unpacked; for data of
your own set `train`, `validation` and `test`. Not run: it needs those files and an accelerator.

Weight decay spares embeddings, norms and biases (`experiments.optimizer`); that of the published
code shrinks every parameter.

`experiments.compare` in place of `experiments.train` runs the paper's eleven models and modern
ones. Accuracies in % published there, one seed (README of google-research/long-range-arena): 64.27
softmax, 52.98 local, 63.58 sparse, 62.85 longformer, 53.94 linformer, 56.10 reformer, 61.20
sinkhorn, 61.68 synthesizer, 64.02 bigbird, 65.90 linear, 65.40 performer.
"""

from experiments.config import task
from experiments.studies.lra.published import attention, variants


def get_config(arg="linear"):
    return {
        "seed": 0,
        "task": task("text", max_length=4000),
        "model": {
            "attention": attention(arg, dropout=0.1),
            "layers": 4,
            "width": 256,
            "heads": 4,
            "mlp_width": 1024,
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
            "steps": 20_000,
            "batch_size": 32,
            "eval_batch_size": 32,
            "eval_every": 1_000,
        },
    }


def sweep():
    yield from variants(chunk=400, dropout=0.1).values()
