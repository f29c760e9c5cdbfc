"""Every mechanism and mixer there is, on real 8x8 digits read pixel by pixel: does each learn?

python -m experiments.compare --config=configs/zoo.py --workdir=runs/zoo

Settings made for thousands of tokens are cut down to 64, so that no sparse pattern sees all of
them. One seed and one learning rate: this tells what works, not what is best.

Of the 57 only the first 13 have been run: from 84.4 (linear) to 95.9% (relu), chance 10.
"""

from attn import MECHANISMS, Causal
from attn.nn import MIXERS
from experiments.config import mechanism, task

CUT = {
    "performer": {"features": 64},
    "based": {"window": 8},
    "window": {"left": 8, "right": 8},
    "global_window": {"window": 16},
    "bigbird": {"block_size": 8, "global_blocks": 1, "random": 1},
    "sinks": {"window": 16},
    "dilated": {"segments": (16, 64), "rates": (1, 4)},
    "hierarchical": {"block": 8},
    "block_sparse": {"masks": ('{"term": "Window", "left": 8, "right": 8}',)},
    "reformer": {"buckets": 8, "chunk": 8},
    "routing": {"clusters": 8, "window": 8},
    "sinkhorn": {"block_size": 8},
    "topk": {"keys": 8},
    "moba": {"block_size": 8},
    "nsa": {
        "compression_block": 8,
        "compression_stride": 4,
        "selection_block": 8,
        "selected": 4,
        "window": 16,
    },
    "quest": {"top": 8, "page": 4},
    "linformer": {"features": 16},
    "nystrom": {"landmarks": 16},
    "set": {"points": 16},
    "abc": {"slots": 16},
}


def get_config():
    return {
        "seed": 0,
        "task": task("digits"),
        "model": {"layers": 2, "width": 64, "heads": 4, "mlp_width": 128, "positions": "learned"},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "weight_decay": 0.05},
        "train": {"steps": 300, "batch_size": 32, "eval_every": 100, "save_every": 300},
    }


def sweep():
    for name, variant in (MECHANISMS | MIXERS).items():
        causal = Causal in variant().requires
        attention = mechanism(name, **CUT.get(name, {}))
        yield {"model.attention": attention, "model.causal": causal}
