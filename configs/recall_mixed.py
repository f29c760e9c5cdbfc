"""What a state of fixed size keeps of more pairs than it was trained on: Based's figure 2 (Arora et
al. 2024, arXiv:2402.18668; at its own size in configs/mqar_mixed.py), reduced to two cores.

python -m experiments.compare --config=configs/recall_mixed.py --workdir=runs/recall_mixed

Trained on 4 pairs in 32 tokens and on 4 and 8 in 64; tested on 16 and 32 in 128 as well. Each model
has the best of three learning rates by a trial with another seed (a fourth rate, 0.03, is searched
now). Two CPU cores (AMD EPYC, shared with other work, 27 November 2026), half a minute to nine
minutes per run on one core; stopped for lack of time after two of the three seeds, "based 16" and
"window 32" after one. Test accuracy in %, mean of the seeds (chance 0.8, any value of the prefix
6.7, the k-th value for the k-th question 9.2), over all questions and by pairs:

                  rate    all   (by seed)   4 in 32   8 in 64   16 in 128   32 in 128
    softmax     0.0125   99.9   99.9 99.9     100.0     100.0        99.9        99.9
    delta_net 64   "     97.6   98.2 97.0     100.0     100.0        99.6        95.8
    linear 64      "     96.1   96.1 96.0      99.8      99.3        97.8        94.0
    based 16       "     94.2   94.2          100.0      99.8        97.1        90.6
    delta_net 32   "     89.9   92.7 87.1      98.5      99.7        97.3        82.6
    linear 32      "     85.5   85.1 85.9      99.0      96.9        91.0        78.2
    delta_net 16   "     64.3   65.5 63.0      98.2      96.8        80.0        44.0
    linear 16      "     55.5   56.1 54.9      91.2      81.0        63.2        40.8
    based 8        "     47.0   47.4 46.6      98.0      85.9        54.3        27.2
    window 32      "     29.2   29.2          100.0      76.0        39.3         3.6
    window 16    0.005   12.7   12.7 12.7      76.7      40.2         7.0         0.8

As published, softmax answers everything, a larger state answers more, and a window answers what it
reaches; at equal head width delta_net recalls more than linear. `based`, although it also has a
window of 16 keys, is no better here than linear with a state of its size: its 45 x 9 numbers score
below linear's 16 x 17, its 153 x 17 between linear's 32 x 33 and 64 x 65. Its values are as narrow
as its keys here, as wide as the model there. The largest rate tried was best for all but one
window, so a larger one may be better still; from the rate alone, 0.002 or 0.0125, trials of
delta_net 32 answered 2.7 or 90.4%.
"""

from experiments.config import mechanism, task

SEEDS = 3

search = {"optimizer.learning_rate": [2e-3, 5e-3, 1.25e-2, 3e-2]}


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
