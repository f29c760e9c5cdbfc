"""Pathfinder with Long Range Arena's model and schedule (Tay et al. 2020), images of our own.

    python -m experiments.train --config=configs/pathfinder.py:linear --workdir=runs/pathfinder
    python -m experiments.train --config=configs/pathfinder.py:small --workdir=runs/pathfinder-small

Not run in full here: it wants an accelerator, and to draw its 62,400 batches of 512 afresh takes
one core half a day (660 images/s); data_dir reads the published ones instead.

small, two CPU cores (AMD EPYC, shared with much other work), seed 0: 8 minutes, 0.6 steps/s; it
does not learn: test accuracy 48.0% after 240 steps of 32 images, 50,754 parameters. It shows that
all parts work together, no more.

`experiments.compare` in place of `experiments.train` runs the paper's eleven models and modern
ones. Accuracies in % published there, one seed (README of google-research/long-range-arena): 71.4
softmax, 66.6 local, 71.7 sparse, 69.7 longformer, 76.3 linformer, 68.5 reformer, 67.5 sinkhorn,
69.5 synthesizer, 74.9 bigbird, 75.3 linear, 77.1 performer.
"""

from experiments.config import mechanism, task
from experiments.studies.lra.published import variants


def get_config(arg="linear"):
    small = arg == "small"
    return {
        "seed": 0,
        # data_dir="..." reads the published images instead.
        "task": task("pathfinder", dashes=6 if small else 14, validation=512, test=512),
        "model": {
            "attention": mechanism("linear" if small else arg),
            "layers": 2 if small else 1,
            "width": 32,
            "heads": 2,
            "head_dim": 8,
            "mlp_width": 32,
            "positions": "learned" if small else "sinusoidal",
            "dropout": 0.0 if small else 0.1,
        },
        "optimizer": {
            "learning_rate": 3e-3 if small else 1e-3,
            "schedule": "cosine",
            "warmup_steps": 50 if small else 312,
            "b2": 0.98,
            "eps": 1e-9,
            "clip_norm": None,
        },
        "train": {
            "steps": 240 if small else 62_400,
            "batch_size": 32 if small else 512,
            "eval_every": 80 if small else 3_120,
        },
    }


def sweep():
    yield from variants().values()
