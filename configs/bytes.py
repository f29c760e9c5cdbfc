"""A causal language model over bytes, in nanoGPT's small setting for Shakespeare's characters.

python -m experiments.train --config=configs/bytes.py:softmax --workdir=runs/bytes \
    --config.task.path=tinyshakespeare.txt
python -m experiments.compare --config=configs/bytes.py --workdir=runs/bytes-variants \
    --config.task.path=tinyshakespeare.txt --processes=2

Three seeds, 2,000 steps (two Intel cores, one core a run, 29 November 2026, commit b86c1e6; both
accuracies and the test loss of each run are in benchmarks/accuracy/bytes.csv); loss in nats per
byte on the last tenth, which is what nanoGPT calls validation (the mean of our two halves of it),
with the lowest and the highest seed; the most frequent byte after the last one is right in 26.9%:

| variant | first half | second half | mean | accuracy, % |
|---|---|---|---|---|
| softmax | 1.804 | 1.865 | 1.834 (1.828 to 1.845) | 45.4 |
| window of 16 | 1.785 | 1.850 | 1.818 (1.809 to 1.830) | 45.8 |
| linear | 1.964 | 1.999 | 1.981 (1.972 to 1.995) | 41.3 |
| gated_delta_net (9% more parameters) | 1.674 | 1.765 | 1.719 (1.712 to 1.731) | 49.2 |

By test accuracy, which is of the second half, linear is 3.8 points below softmax (p < 0.001) and
gated_delta_net 3.5 above (p 0.01); the window is a tie (+0.3, p 0.075).

nanoGPT's own code under torch 2.13 reaches 1.886; ours scores all of the text and does not tie the
output weights to the embedding. Whole commands with compilation, run in turns, on two AMD EPYC
cores (1 December 2026, commit 2e2921e), two pairs: softmax 60 and 53 s (40 and 46 steps/s),
nanoGPT 76 and 67, so 0.79 times its time; between them the commit before a step took the leaves of
the state took 66 and 56. Earlier commits took 0.74 to 0.96 on this and two other machines of the
kind. On two cores of an Intel Xeon with AVX-512 (26 November 2026) they were slower than nanoGPT:
two pairs, 124 and 134 s (17 to 19 steps/s) against 87 and 88, 1.41 to 1.54; on another (29
November) 109 s (21 steps/s) against 76, 1.44, with jax 0.12.0 as with 0.10.2. Most of a step is
XLA's matrix products, and without its library for them (YNNPACK) a step took 72 ms instead of 53.
Seed 0 of softmax came to 1.817 and 1.873 on every machine.
tinyshakespeare.txt is what nanoGPT trains on: data/tinyshakespeare/input.txt of
https://github.com/karpathy/char-rnn. Without a path the text is Python's own documentation.

Here classes are bytes and tokens are bytes + 1. A model that is to write text is trained with
--config.objective=causal, where the classes are the tokens: docs/reuse.md, "A trained run".
"""

from experiments.config import mechanism, task

SEEDS = 3


def get_config(arg="softmax"):
    return {
        "seed": 0,
        "task": task("bytes", length=64),
        "model": {
            "attention": mechanism(arg),
            "causal": True,
            "layers": 4,
            "width": 128,
            "heads": 4,
            "mlp_width": 512,
            "positions": "learned",
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-4,
            "warmup_steps": 100,
            "weight_decay": 0.1,
            "b2": 0.99,
        },
        "train": {
            "steps": 2000,
            "batch_size": 12,
            "eval_batch_size": 32,
            "eval_every": 500,
            "save_every": 1000,
        },
    }


def sweep():
    for attention in (
        mechanism("softmax"),
        mechanism("window", left=15, right=0),
        mechanism("linear"),
        mechanism("gated_delta_net"),
    ):
        for seed in range(SEEDS):
            yield {"model.attention": attention, "seed": seed}
