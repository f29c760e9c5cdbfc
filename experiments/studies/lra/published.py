"""Long Range Arena's eleven models (Tay et al. 2020, arXiv:2011.04006) as ours, and its results."""

from dataclasses import fields
from typing import Any

from attn import MECHANISMS
from experiments.config import mechanism

# Accuracy in %, one seed each: README of google-research/long-range-arena.
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "average")
_ACCURACY = {
    "softmax": (36.37, 64.27, 57.46, 42.44, 71.40, 54.39),
    "local": (15.82, 52.98, 53.39, 41.46, 66.63, 46.06),
    "sparse": (17.07, 63.58, 59.59, 44.24, 71.71, 51.24),
    "longformer": (35.63, 62.85, 56.89, 42.22, 69.71, 53.46),
    "linformer": (35.70, 53.94, 52.27, 38.56, 76.34, 51.36),
    "reformer": (37.27, 56.10, 53.40, 38.07, 68.50, 50.67),
    "sinkhorn": (33.67, 61.20, 53.83, 41.23, 67.45, 51.29),
    "synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45, 52.88),
    "bigbird": (36.05, 64.02, 59.29, 40.83, 74.87, 55.01),
    "linear": (16.13, 65.90, 53.09, 42.34, 75.30, 50.55),
    "performer": (18.01, 65.40, 53.82, 42.77, 77.05, 51.41),
}
ACCURACY = {task: {name: row[i] for name, row in _ACCURACY.items()} for i, task in enumerate(TASKS)}
MODERN = ("gla", "mamba2", "gated_delta_net")
# Layers, width, heads, width of all heads, MLP's width, dropout: of the tasks of pixels each model
# has its own there (lra_benchmarks/image/configs; the 4 heads of bigbird are misspelt: it has 1)
SIZES = {
    "image": {
        "softmax": (1, 128, 8, 64, 128, 0.3),
        "local": (1, 128, 2, 64, 128, 0.3),
        "sparse": (1, 128, 8, 64, 128, 0.3),
        "longformer": (4, 128, 4, 64, 128, 0.3),
        "linformer": (1, 128, 8, 64, 128, 0.3),
        "reformer": (4, 64, 8, 32, 64, 0.3),
        "sinkhorn": (1, 32, 1, 32, 64, 0.1),
        "synthesizer": (1, 128, 8, 64, 128, 0.3),
        "bigbird": (1, 128, 1, 64, 128, 0.3),
        "linear": (1, 128, 8, 64, 128, 0.3),
        "performer": (1, 128, 8, 64, 128, 0.3),
    },
    "pathfinder": {
        "softmax": (4, 32, 4, 16, 32, 0.2),
        "local": (2, 64, 4, 32, 64, 0.1),
        "sparse": (1, 32, 8, 16, 32, 0.2),
        "longformer": (2, 32, 2, 16, 32, 0.1),
        "linformer": (1, 32, 2, 16, 32, 0.2),
        "reformer": (2, 64, 8, 32, 64, 0.2),
        "sinkhorn": (2, 32, 4, 16, 64, 0.2),
        "synthesizer": (2, 64, 4, 32, 64, 0.2),
        "bigbird": (4, 64, 2, 32, 64, 0.2),
        "linear": (1, 128, 2, 64, 128, 0.2),
        "performer": (4, 32, 8, 16, 32, 0.2),
    },
}
MORE = {
    ("image", "local"): {"model.pooling": "mean"},
    ("image", "longformer"): {"model.pooling": "mean"},
    ("image", "sinkhorn"): {"optimizer.weight_decay": 0.7},
}


def size(task: str, model: str) -> dict[str, Any]:
    """The overrides that a model has on a task; {} where all have the config's sizes. Modern ones
    have softmax's."""
    if task not in SIZES:
        return {}
    of = SIZES[task]
    layers, width, heads, inner, mlp, dropout = of.get(model, of["softmax"])
    sizes = {"layers": layers, "width": width, "heads": heads, "head_dim": inner // heads}
    sizes |= {"mlp_width": mlp, "dropout": dropout}
    return {f"model.{name}": x for name, x in sizes.items()} | MORE.get((task, model), {})


def attention(name: str, dropout: float) -> dict[str, Any]:
    """A mechanism or mixer, which drops that share of its weights where it has weights to drop."""
    drops = name in MECHANISMS and "dropout_rate" in {f.name for f in fields(MECHANISMS[name])}
    return mechanism(name, dropout_rate=dropout) if drops else mechanism(name)


def models(
    *,
    block: int = 50,
    sparse: int = 50,
    summary: int = 10,
    window: int = 256,
    keys: int = 16,
    features: int = 256,
    buckets: int = 10,
    chunk: int = 200,
    bigbird: tuple[int, int, int] = (64, 2, 3),
    dropout: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """A mechanism for each model; by default with the settings that take effect there at full size.

    `block` is local's and sinkhorn's; `window` keys on each side; `chunk` of reformer a tenth of
    the tokens there, for its 10 buckets; `bigbird` the block, the global and the random blocks;
    `dropout` of weights where there are some. Unlike the published code: local is cut into blocks
    as its paper says, the two kinds of heads of sparse are merged and see both ways, performer's
    features are its paper's and not ReLU, synthesizer has its random logits alone and not q . k
    beside them, bigbird's second global block is its second and not its last.
    """
    block_size, global_blocks, random = bigbird
    dropped = {"dropout_rate": dropout}
    return {
        "softmax": mechanism("softmax", **dropped),
        "local": mechanism("fixed", block_size=block, summary=0, **dropped),
        "sparse": mechanism("fixed", block_size=sparse, summary=summary, **dropped),
        "longformer": mechanism("global_window", window=window, **dropped),
        "linformer": mechanism("linformer", features=keys, sharing="key_value"),
        "reformer": mechanism("reformer", shared_qk=True, rounds=1, buckets=buckets, chunk=chunk),
        "sinkhorn": mechanism("sinkhorn", block_size=block),
        "synthesizer": mechanism("synthesizer", kind="random", **dropped),
        "bigbird": mechanism(
            "bigbird",
            block_size=block_size,
            global_blocks=global_blocks,
            random=random,
            **dropped,
        ),
        "linear": mechanism("linear"),
        "performer": mechanism("performer", features=features),
    }


def variants(task: str = "", **settings: Any) -> dict[str, dict[str, Any]]:
    """Overrides of a configuration for each of the eleven, by `models` and its `size` on the task,
    and for each modern one. Unlike there nothing is dropped inside the MLPs.

    The modern ones are causal, as they are published; so they pool by the mean, for a CLS in front
    would see no other token.
    """
    found = {name: {"model.attention": x} for name, x in models(**settings).items()}
    causal = {"model.causal": True, "model.pooling": "mean"}
    found |= {name: {"model.attention": mechanism(name), **causal} for name in MODERN}
    return {name: changes | size(task, name) for name, changes in found.items()}
