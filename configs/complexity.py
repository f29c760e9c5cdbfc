"""The complexity table of Vaswani et al. 2017 for every mixer: work, sequential steps, paths.

    python -m experiments.studies.complexity --config=configs/complexity.py --out=DIR

Results: experiments/studies/complexity/README.md. Work is counted at lengths at which the
registered settings of the mechanisms are sparse; paths are computed at lengths at which those
settings would see everything, so with small ones. Lengths are squares, for axial, strided, fixed
and local_2d.
"""

import math

from attn import MECHANISMS
from attn.nn import MIXERS
from experiments.config import mechanism

LARGE = {"dilated": {"segments": (256, 1024, 4096, 16384), "rates": (1, 4, 16, 64)}}
SMALL = {
    "performer": {"features": 32},
    "rfa": {"features": 32},
    "based": {"window": 4},
    "window": {"left": 4, "right": 4},
    "global_window": {"window": 4},
    "bigbird": {"block_size": 4, "global_blocks": 1, "random": 1},
    "sinks": {"window": 4},
    "local_2d": {"reach": 1},
    "dilated": {"segments": (4, 16, 64, 256), "rates": (1, 2, 4, 8)},
    "hierarchical": {"block_size": 4},
    "block_sparse": {"masks": ('{"term": "Window", "left": 4, "right": 4}',)},
    "reformer": {"buckets": 4, "rounds": 2, "chunk": 4},
    "sinkhorn": {"block_size": 4},
    "topk": {"keys": 4},
    "moba": {"block_size": 4, "top": 2},
    "nsa": {
        "compression_block": 4,
        "compression_stride": 2,
        "selection_block": 4,
        "selected": 3,
        "window": 4,
    },
    "quest": {"top": 2, "page": 4},
    "linformer": {"features": 8},
    "nystrom": {"landmarks": 8},
    "poolingformer": {"window": 2, "pool_window": 6, "kernel": 3, "stride": 2},
    "set": {"points": 8},
    "luna": {"length": 8},
    "abc": {"slots": 8},
}


def mixers(T, settings):
    root = {"routing": {"clusters": math.isqrt(T), "window": math.isqrt(T)}}
    return [mechanism(name, **(settings | root).get(name, {})) for name in MECHANISMS | MIXERS]


def get_config():
    at = lambda settings, *lengths: [{"length": T, "mixers": mixers(T, settings)} for T in lengths]
    return {
        "heads": 4,
        "head_dim": 16,
        "causal": False,
        "draws": 2,
        "work": at(LARGE, 2304, 4096, 9216, 16384),
        "reach": at(SMALL, 16, 64),
    }
