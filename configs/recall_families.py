"""Recall against the size of the state, for the families that decode from one: does the published
trade-off (Zoology, Arora et al. 2023, arXiv:2312.04927; Based, arXiv:2402.18668) appear?

python -m experiments.compare --config=configs/recall_families.py --workdir=runs/recall_families \
    --processes=2

The task and the short convolution in front are those of configs/recall_state.py.

Two CPU cores (AMD EPYC, shared), one seed, half a minute to six minutes per run beside other work.
Test accuracy in % (chance 0.8, any value of the prefix 12.5, the k-th value for the k-th question
15.7; softmax 99.9) with a state of 64, 256, 1,024 numbers:

    linear 12.3, 60.0, 87.1              gla 1.2, 5.5, 6.9       rwkv6 1.5, 5.0, 6.0
    delta_net 1.4, 15.5, 88.9            kda 1.5, 4.9, 17.8      mamba2 0.7, 0.7, 4.5
    retention 0.9, 3.1, 3.7              hgrn2 0.8, 0.8, 0.8     gated_delta_net 0.8, 0.8, 0.8

(linear with two more seeds: 5.2 and 8.5, 37.6 and 42.0, 87.3 and 87.8; experiments/studies/tasks.)
Only `linear` with 256 numbers or more, and `delta_net` and `kda` with 1,024, recall more than an
answer that reads no key; this grows with the state, as published. It does not show that gates limit
recall: 400 steps at one rate, which suits `linear`, are too few for them. Most had not left the
plateau (loss 4.85, that of guessing among 128 values); `kda` was improving when it was stopped.
Zoology gives each model its best of four rates and 64 epochs: for that, add more steps and
`search = {"optimizer.learning_rate": [...]}`. On shorter rows, with more steps:
experiments/studies/recall_state.
"""

from experiments.config import mechanism, task

WITHOUT_GATES = ("linear", "retention", "delta_net")
GATED = ("gla", "mamba2", "hgrn2", "rwkv6", "gated_delta_net", "kda")
WIDTHS = (8, 16, 32)  # of a head; a state has as many numbers squared


def get_config():
    return {
        "seed": 0,
        "task": task("recall", vocab_size=256, length=64, pairs=(8,)),
        "model": {
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "none",
        },
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 40, "weight_decay": 0.1},
        "train": {"steps": 400, "batch_size": 128, "eval_every": 100, "save_every": 400},
    }


def sweep():
    first = mechanism("depthwise_conv", kernel=4)
    yield {"name": "softmax", "model.attention": [first, mechanism("softmax")]}
    for name in WITHOUT_GATES + GATED:
        for width in WIDTHS:
            yield {
                "name": f"{name} {width}",
                "model.attention": [first, mechanism(name)],
                "model.head_dim": width,
            }
