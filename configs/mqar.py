"""Multi-query associative recall at Zoology's own size (Arora et al. 2023, arXiv:2312.04927).

    python -m experiments.train --config=configs/mqar.py:256 --workdir=runs/mqar
    python -m experiments.compare --config=configs/mqar.py:256 --workdir=runs/mqar-256

The argument is the length: 64 with 4 pairs, 128 with 8, 256 with 16. Published in figure 2: softmax
solves all three at every width; models with a fixed state need a width that grows with the length
(a figure, no table). Answering the k-th question with the k-th value, without reading a key, is
right in 28.1, 15.0 and 7.9%. Differences from that setting: rows are drawn afresh, where it has
100,000 rows 64 times over, so there is no dropout (.1 there); the output weights are not tied to
the embedding; weight decay spares embeddings, norms and biases; nothing takes the place of an MLP,
where its blocks add a norm of what they hold; mixers without a short convolution of their own have
one in the layer before, as its Based has; `based` has heads of width 16, whose features are the
paper's, each with values of its own, and a window of 16 keys. Not run: it needs an accelerator.
"""

from experiments.config import mechanism, task

BATCH = {"64": 512, "128": 512, "256": 256}
WITH_CONVOLUTION = ("mamba2", "gated_delta_net")
OTHERS = ("linear", "gla", "rwkv6")

search = {"optimizer.learning_rate": [1e-4, 4.64e-4, 2.15e-3, 1e-2]}


def get_config(arg="64"):
    batch, length = BATCH[arg], int(arg)
    return {
        "seed": 0,
        "task": task("recall", vocab_size=8192, length=length, pairs=(length // 16,), noise=False),
        "model": {
            "attention": mechanism("softmax"),
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "learned",
        },
        "optimizer": {"learning_rate": 2.15e-3, "weight_decay": 0.1, "clip_norm": None},
        "train": {
            "steps": 64 * 100_000 // batch,
            "batch_size": batch,
            "eval_every": 100_000 // batch,
        },
    }


def sweep():
    first = mechanism("depthwise_conv", kernel=4)
    mixers = {"softmax": mechanism("softmax")}
    mixers |= {name: mechanism(name) for name in WITH_CONVOLUTION}
    mixers |= {name: [first, mechanism(name)] for name in OTHERS}
    # its window shorter than the text, of which it would else be softmax, and its heads (below) as
    # narrow as the paper's features, whose squares are its state
    mixers["based"] = [first, mechanism("based", window=16)]
    for name, attention in mixers.items():
        for width in (64, 128, 256, 512):
            positions = "learned" if name == "softmax" else "none"
            yield {
                "model.attention": attention,
                "model.width": width,
                "model.positions": positions,
                "model.heads": width // 16 if name == "based" else 1,
            }
