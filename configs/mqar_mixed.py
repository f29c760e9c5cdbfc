"""Recall against the size of the state at Based's own size (Arora et al. 2024, arXiv:2402.18668,
figure 2): trained on up to 256 tokens with 64 pairs, tested on up to 1,024 with 256.

    python -m experiments.train --config=configs/mqar_mixed.py --workdir=runs/mqar-mixed
    python -m experiments.compare --config=configs/mqar_mixed.py --workdir=runs/mqar-mixed-all

The published result is a figure, no table: attention is right throughout; `based` comes closer to
it with more features in its state, and a window with more width, each on a curve over the bytes of
its state. The report draws accuracy against those bytes and, by slice, against pairs and tokens.
Sizes are those of Zoology's code. There the first layer is a gated convolution, here a short one;
there `based` is one head whose features are made of 8, 16 or 24 numbers, here as many heads of that
width as fit, each with values of its own, and a window of 16 keys. gla, delta_net and
gated_delta_net are from its later list. Rows are drawn afresh, where it has 180,000 rows 32 times
over; it has one size per batch, here sizes are mixed, so rows are padded to the longest, 256 tokens
in training. Not run: it needs an accelerator.
"""

from experiments.config import mechanism, task

ROWS, EPOCHS, BATCH = 180_000, 32, 256
LATER = ("gla", "delta_net", "gated_delta_net")

search = {"optimizer.learning_rate": [1e-3, 3.16e-3, 1e-2, 3.16e-2]}


def get_config():
    return {
        "seed": 0,
        "task": task("recall_mixed"),
        "model": {
            "attention": [mechanism("depthwise_conv", kernel=4), mechanism("softmax")],
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "none",
        },
        "optimizer": {"learning_rate": 3.16e-3, "weight_decay": 0.1, "clip_norm": None},
        "train": {
            "steps": EPOCHS * ROWS // BATCH,
            "batch_size": BATCH,
            "eval_batch_size": BATCH // 8,
            "eval_every": ROWS // BATCH,
        },
    }


def sweep():
    first = mechanism("depthwise_conv", kernel=4)
    cell = lambda width, heads, *mixers, **more: {
        "model.attention": mixers[0] if len(mixers) == 1 else list(mixers),
        "model.width": width,
        "model.heads": heads,
        **more,
    }
    for width in (64, 128):
        yield cell(width, 1, first, mechanism("softmax"))
    for width in (48, 64, 128):
        for features in (8, 16, 24):
            heads = width // features
            based = mechanism("based", window=16)
            yield cell(width, heads, first, based, **{"model.head_dim": features})
    for keys in (8, 16, 32, 64, 128, 256, 512, 1024):
        yield cell(128, 1, first, mechanism("window", left=keys - 1, right=0))
    for width in (64, 128, 256):
        yield cell(width, 1, mechanism("mamba2"))
        for name in LATER:
            yield cell(width, 2, first, mechanism(name))
