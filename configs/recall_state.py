"""What recall needs: exact attention sees all keys, a linear state must hold them, a window must
reach them (MQAR, Arora et al. 2023, arXiv:2312.04927; 64 tokens, 8 pairs out of 256 tokens). A
short convolution in the first layer brings each key to its value, as in that paper's models.

python -m experiments.compare --config=configs/recall_state.py --workdir=runs/recall_state

Two Intel cores, one core and half a minute per run, means of three seeds (experiments/studies/tasks
has their range). Test accuracy in % (chance 0.8, any value of the prefix 12.5, the k-th value for
the k-th question 15.7): softmax 99.9; linear with a state of 8 x 8 numbers 8.7, 16 x 16 46.6 (37.6
to 60.0), 32 x 32 87.4, 64 x 64 95.9, 128 x 128 99.0; a window of 8 keys 0.7, of 16 36.3, of 32
75.8. With one seed, two layers of linear attention with rotary positions instead of the convolution
stayed at 13 to 14, below what can be had without reading a key, with states of 64, 128 and 256
squared. With other families, on shorter rows: experiments/studies/recall_state.
"""

from experiments.config import mechanism, task


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
    def run(name, second, head_dim):
        layers = [mechanism("depthwise_conv", kernel=4), second]
        return {"name": name, "model.attention": layers, "model.head_dim": head_dim}

    yield run("softmax", mechanism("softmax"), 64)
    for width in (8, 16, 32, 64, 128):  # a state of width x width numbers
        yield run(f"linear {width}", mechanism("linear"), width)
    for keys in (8, 16, 32):
        yield run(f"window {keys}", mechanism("window", left=keys - 1, right=0), 64)
