"""Recall against the size of the state, for the families that decode from one: is the published
trade-off (Zoology, Arora et al. 2023, arXiv:2312.04927; Based, arXiv:2402.18668) there?

python -m experiments.compare --config=configs/recall_families.py --workdir=runs/recall_families \\
    --processes=2

The task and the short convolution in front are those of configs/recall_state.py.
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
