"""Dates as people write them to ISO 8601, character by character.

python -m experiments.train --config=configs/dates.py --workdir=runs/dates

and with the recurrent models that attention was invented for:

python -m experiments.train --config=configs/dates.py:bahdanau --workdir=runs/dates-bahdanau

(luong and lstmn likewise, the last with attention within both sequences too, Cheng et al. 2016).

Two CPU cores (AMD EPYC, shared with other work), seed 0, test exact match:

    transformer   99.9%   169 s ( 64 s compiling)    7.7 steps/s    92,045 parameters
    bahdanau     100.0%   200 s ( 77 s compiling)    8.4 steps/s    96,781 parameters
    luong        100.0%   146 s ( 78 s compiling)   25.7 steps/s   100,749 parameters
    lstmn        99.97%   223 s ( 39 s compiling)    3.5 steps/s   125,517 parameters

The load of the other work differed between the runs, so the times cannot be compared. Afterwards

python -m experiments.align --workdir=runs/dates-bahdanau --example=2

draws the alignment: three blocks, for the year, the month and the day, each read from left to
right; the dashes between them and the end attend to where the next or the last block is.
"""

from experiments.config import task

MODELS = {
    "transformer": {"layers": 1, "heads": 4, "mlp_width": 128, "positions": "learned"},
    "bahdanau": {"family": "bahdanau"},
    "luong": {"family": "luong"},
    "lstmn": {"family": "lstmn"},
}


def get_config(arg="transformer"):
    return {
        "seed": 0,
        "task": task("dates"),
        "model": {"width": 64, **MODELS[arg]},
        "optimizer": {"learning_rate": 4e-3, "warmup_steps": 50},
        "train": {"steps": 600, "batch_size": 64, "eval_every": 200, "save_every": 600},
    }
