"""Long Range Arena's eleven models (Tay et al. 2020, arXiv:2011.04006) as ours, and its results."""

from typing import Any

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


def models(
    *,
    block: int = 50,
    summary: int = 10,
    window: int = 256,
    keys: int = 16,
    features: int = 256,
    buckets: int = 10,
    chunk: int = 64,
    bigbird: tuple[int, int, int] = (64, 2, 3),
) -> dict[str, dict[str, Any]]:
    """A mechanism for each model; by default with the settings that take effect there at full size.

    `window` keys on each side; `bigbird` is the block, the global and the random blocks. Unlike
    the published code: local is cut into blocks as its paper says, the two kinds of heads of sparse
    are merged and see both ways, performer's features are its paper's and not ReLU.
    """
    block_size, global_blocks, random = bigbird
    return {
        "softmax": mechanism("softmax"),
        "local": mechanism("fixed", block_size=block, summary=0),
        "sparse": mechanism("fixed", block_size=block, summary=summary),
        "longformer": mechanism("global_window", window=window),
        "linformer": mechanism("linformer", features=keys, sharing="key_value"),
        "reformer": mechanism("reformer", shared_qk=True, rounds=1, buckets=buckets, chunk=chunk),
        "sinkhorn": mechanism("sinkhorn", block_size=block),
        "synthesizer": mechanism("synthesizer", kind="random"),
        "bigbird": mechanism(
            "bigbird", block_size=block_size, global_blocks=global_blocks, random=random
        ),
        "linear": mechanism("linear"),
        "performer": mechanism("performer", features=features),
    }


def variants(**sizes: Any) -> dict[str, dict[str, Any]]:
    """Overrides of a configuration for each of the eleven, by `models`, and for each modern one.

    The modern ones are causal, as they are published; so they pool by the mean, for a CLS in front
    would see no other token.
    """
    eleven = {name: {"model.attention": x} for name, x in models(**sizes).items()}
    causal = {"model.causal": True, "model.pooling": "mean"}
    return eleven | {name: {"model.attention": mechanism(name), **causal} for name in MODERN}
