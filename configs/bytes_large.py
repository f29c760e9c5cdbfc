"""nanoGPT's large setting for Shakespeare's characters: three minutes on a GPU.

python -m experiments.train --config=configs/bytes_large.py:softmax --workdir=runs/bytes-large \
    --config.task.path=tinyshakespeare.txt
python -m experiments.compare --config=configs/bytes_large.py --workdir=runs/bytes-large-variants \
    --config.task.path=tinyshakespeare.txt

Published by nanoGPT (https://github.com/karpathy/nanoGPT): best validation loss 1.4697 nats a
character after 5,000 steps, three minutes on an A100. Differences from that setting: bytes are
tokens, ours scores all of the last tenth and does not tie the output weights to the embedding (as
in configs/bytes.py, which says where the text is from). Not run: it needs an accelerator.
"""

from experiments.config import mechanism, task


def get_config(arg="softmax"):
    dropping = {"dropout_rate": 0.2} if arg == "softmax" else {}
    return {
        "seed": 0,
        "task": task("bytes", length=256),
        "model": {
            "attention": mechanism(arg, **dropping),
            "causal": True,
            "layers": 6,
            "width": 384,
            "heads": 6,
            "mlp_width": 1536,
            "positions": "learned",
            "dropout": 0.2,
            "dtype": "bfloat16",
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-4,
            "warmup_steps": 100,
            "weight_decay": 0.1,
            "b2": 0.99,
        },
        "train": {"steps": 5000, "batch_size": 64, "eval_every": 250, "save_every": 1000},
    }


def sweep():
    for attention in (
        mechanism("softmax", dropout_rate=0.2),
        mechanism("window", left=63, right=0),
        mechanism("linear"),
        mechanism("gated_delta_net"),
    ):
        yield {"model.attention": attention}
