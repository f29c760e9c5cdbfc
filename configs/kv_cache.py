"""What must be kept of each token while decoding: all heads, grouped heads, one head, or latents.

python -m experiments.compare --config=configs/kv_cache.py --workdir=runs/kv_cache \
    --config.task.path=tinyshakespeare.txt --processes=2

nanoGPT's small setting (configs/bytes.py, which says where the text is from) with fewer key heads,
and with `latent`, which rebuilds the keys and values of all heads from what one key head keeps.
Three seeds (two Intel cores, one core a run, 29 November 2026, commit 91932c1; accuracies and the
second half's loss of each run are in benchmarks/accuracy/kv_cache.csv, whose times were measured
beside other work; all digits here are those of an AMD EPYC the day before); loss in nats per byte,
the mean of both halves of the last tenth, with the lowest and the highest seed:

| | numbers kept a token and layer | parameters | loss | accuracy, % |
|---|---|---|---|---|
| softmax, 4 key heads | 256 | 865,408 | 1.834 (1.828 to 1.845) | 45.4 |
| softmax, 2 key heads | 128 | 799,872 | 1.854 (1.846 to 1.860) | 44.9 |
| latent, 2 key heads | 128 | 865,408 | 1.845 (1.838 to 1.852) | 45.0 |
| softmax, 1 key head | 64 | 767,104 | 1.861 (1.844 to 1.875) | 44.5 |
| latent, 1 key head | 64 | 832,640 | 1.859 (1.849 to 1.873) | 44.6 |

The means follow what is kept, and latents are ahead of as many key heads by 0.009 (two) and 0.002
(one), with 8 and 9% more parameters; three seeds establish none of this (the smallest p of six
paired t-tests is 0.038, not corrected). DeepSeek-V2's own comparisons are at billions of
parameters, with rotary positions, which `decoupled` channels would carry here.
"""

from experiments.config import mechanism, task


def get_config():
    return {
        "seed": 0,
        "task": task("bytes", length=64),
        "model": {
            "attention": mechanism("softmax"),
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
    kept = (("softmax", 4), ("softmax", 2), ("latent", 2), ("softmax", 1), ("latent", 1))
    for name, kv_heads in kept:
        for seed in range(3):
            yield {
                "model.attention": mechanism(name),
                "model.kv_heads": kv_heads,
                "seed": seed,
            }
