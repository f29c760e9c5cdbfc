"""What a state of fixed size keeps of more pairs than it was trained on: Based's figure 2 (Arora et
al. 2024, arXiv:2402.18668; at its own size in configs/mqar_mixed.py), reduced to two cores.

python -m experiments.compare --config=configs/recall_mixed.py --workdir=runs/recall_mixed

Trained on 4 pairs in 32 tokens and on 4 and 8 in 64, asked also about 16 and 32 in 128. Two CPU
cores (AMD EPYC, shared, 27 November 2026), seed 0, half a minute to two a run; test accuracy in %
(chance 0.8, any value of the prefix 6.7, the k-th value for the k-th question 9.2), of all
questions and by pairs:

                    all   4 in 32   8 in 64   16 in 128   32 in 128
    softmax        99.5      99.9      99.8        99.6        99.3
    delta_net 64   93.3     100.0      99.7        97.6        88.8
    linear 64      88.0      98.9      96.4        91.2        83.0
    linear 32      70.8      94.7      88.2        76.4        60.6
    delta_net 32   61.3      93.2      89.6        70.8        45.6
    linear 16      47.1      88.0      73.1        52.8        32.6
    window 32      29.0      99.7      75.9        39.0         3.5
    delta_net 16   13.2      44.4      25.7        12.5         6.5
    window 16      12.7      76.3      39.7         7.1         0.7

As published, softmax answers all, a state the more the larger it is, a window what it reaches.
delta_net with 16 and 32 was still rising when its 400 steps ended, linear was not. One seed, one
learning rate.
"""

from experiments.config import mechanism, task

SEEDS = 3

search = {"optimizer.learning_rate": [2e-3, 5e-3, 1.25e-2]}


def get_config():
    return {
        "task": task(
            "recall_mixed",
            vocab_size=256,
            lengths=(32, 64, 64),
            pairs=(4, 4, 8),
            shares=(1, 1, 2),
            held_lengths=(32, 64, 128, 128),
            held_pairs=(4, 8, 16, 32),
            validation=1000,
            test=4000,
        ),
        "model": {
            "attention": [mechanism("depthwise_conv", kernel=4), mechanism("softmax")],
            "causal": True,
            "layers": 2,
            "width": 64,
            "heads": 1,
            "mlp_width": 0,
            "positions": "none",
        },
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 40, "weight_decay": 0.1},
        "train": {"steps": 600, "batch_size": 128, "eval_every": 100, "save_every": 600},
    }


def sweep():
    first = mechanism("depthwise_conv", kernel=4)
    cells = [("softmax", {"model.attention": [first, mechanism("softmax")]})]
    for head_dim in (16, 32, 64):  # a state of head_dim x head_dim numbers
        for name in ("linear", "delta_net"):
            layers = {"model.attention": [first, mechanism(name)]}
            cells += [(f"{name} {head_dim}", layers | {"model.head_dim": head_dim})]
    for head_dim in (8, 16):  # of 45 and 153 x head_dim
        layers = {"model.attention": [first, mechanism("based", window=16)]}
        cells += [(f"based {head_dim}", layers | {"model.head_dim": head_dim})]
    for keys in (16, 32):
        layers = {"model.attention": [first, mechanism("window", left=keys - 1, right=0)]}
        cells += [(f"window {keys}", layers)]
    for seed in range(SEEDS):
        for name, fields in cells:
            yield {"name": name, "seed": seed} | fields
