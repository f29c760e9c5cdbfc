"""What must a state forget? Symbols among noise, to be repeated in order ("selective_copy"), and
the token that followed a special one ("induction"), both of Gu & Dao 2023, arXiv:2312.00752.

python -m experiments.compare --config=configs/gating.py:selective_copy --workdir=runs/gating-copy
python -m experiments.compare --config=configs/gating.py:induction --workdir=runs/gating-induction

Two Intel cores, one core a run, means of three seeds, 600 steps (each seed's range is in
experiments/studies/tasks). Test accuracy in % on selective_copy (chance 7.7; 48.9 by counting:
always the symbol of which the row has most left): linear 42.4, performer 35.8, retention 49.8 (46.1
to 55.4); gla 68.5, mamba2 95.0, delta_net 98.0, gated_delta_net 94.6, kda 99.8; softmax, which has
no positions here, 46.6. So in the mean softmax and those without gates are at most 0.9 above a
guess that ignores order (of retention one seed is 6.5 above it, two are below). mamba2 and the
delta-rule variants also have a short convolution, as published; gla and retention differ only in
their decay.
On induction (chance 7.1; 13.4 by the row's most frequent token): linear 42.8, performer 23.9 (up to
61.7 with other features and machines), retention 24.2 (13.0 to 33.7); gla, mamba2, delta_net,
gated_delta_net and kda 100; softmax without positions 49.8.
"""

from experiments.config import mechanism, task

TASKS = {
    "selective_copy": task("selective_copy", symbols=6, length=64),
    "induction": task("induction", length=64),
}
UNGATED = ("linear", "performer", "retention")
GATED = ("gla", "mamba2", "delta_net", "gated_delta_net", "kda")  # tokens say what is kept


def get_config(arg="selective_copy"):
    return {
        "seed": 0,
        "task": TASKS[arg],
        "model": {
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 2,
            "mlp_width": 0,
            "positions": "none",
        },
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "train": {"steps": 600, "batch_size": 64, "eval_every": 200, "save_every": 600},
    }


def sweep():
    for name in ("softmax", *UNGATED, *GATED):
        yield {"model.attention": mechanism(name)}
