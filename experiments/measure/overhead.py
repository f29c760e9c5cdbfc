"""What the train loop adds to the jitted step: batches, metrics, progress; not scoring, saving."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import train
from experiments.config import Experiment, task
from experiments.learner import Learner
from experiments.memory import keep_freed_memory
from experiments.tasks import Batch
from experiments.validation import from_dict

STEPS = 300


def experiment() -> Experiment:
    """Digits as in configs/digits.py, scored and saved at the end only."""
    return from_dict(
        {
            "task": task("digits"),
            "model": {"attention": "softmax", "positions": "learned"},
            "optimizer": {"learning_rate": 2e-3, "warmup_steps": 50, "weight_decay": 0.05},
            "train": {"steps": STEPS, "batch_size": 64, "eval_every": STEPS, "save_every": STEPS},
        }
    )


def measure(trained: Experiment, rounds: int = 3, tell: Callable[[str], Any] = print) -> dict:
    """Milliseconds of a step, alone and in the loop, by turns; what the loop adds as a sentence."""
    keep_freed_memory()  # as the loop does, before its first step
    alone, looped = [], []
    step = _compiled(trained)
    for _ in range(rounds):
        alone.append(_alone(step, trained))
        with tempfile.TemporaryDirectory() as folder:
            result = train.run(trained, Path(folder) / "run", progress=False)
        looped.append(1e3 / result["steps_per_second"])
        tell(f"jitted step {alone[-1]:.2f} ms, in the loop {looped[-1]:.2f} ms")
    middle, least = ((f(alone), f(looped)) for f in (statistics.median, min))
    adds = lambda pair: f"{pair[0]:.2f} -> {pair[1]:.2f} ms, {100 * (pair[1] / pair[0] - 1):+.1f}%"
    note = (
        f"A step alone -> in the loop: median of {rounds} runs {adds(middle)}; minimum "
        f"{adds(least)} ({trained.train.steps} steps of softmax on digits, batch "
        f"{trained.train.batch_size}; scoring and saving left out)."
    )
    return {"title": "train loop", "note": note, "alone_ms": alone, "loop_ms": looped, "rows": []}


def _compiled(trained: Experiment) -> tuple[Learner, Callable]:
    learner = Learner(trained)
    leaves, seed = jax.tree.leaves(learner.shapes), np.int32(trained.seed)
    step = jax.jit(learner.train_steps, donate_argnums=0)
    return learner, step.lower(leaves, _batch(trained, 0), np.int32([0]), seed).compile()


def _batch(trained: Experiment, number: int) -> Batch:
    """As `train_steps` takes it: of one step."""
    batch = trained.posed.batch(trained.seed, number, trained.train.batch_size)
    return jax.tree.map(lambda x: x[None], batch)


def _alone(compiled: tuple[Learner, Callable], trained: Experiment) -> float:
    """The same steps on batches made beforehand, the device never waiting for the host."""
    learner, step = compiled
    steps, seed = trained.train.steps, np.int32(trained.seed)
    batches = [_batch(trained, i) for i in range(steps)]
    leaves = jax.tree.leaves(jax.block_until_ready(jax.jit(learner.init)()))
    waiting = None
    start = time.perf_counter()
    for i, batch in enumerate(batches):
        leaves, metrics = step(leaves, batch, np.int32([i]), seed)
        # as many steps ahead as the loop allows itself: more would only fill memory
        jax.block_until_ready(waiting)
        waiting = metrics
    jax.block_until_ready(leaves)
    return 1e3 * (time.perf_counter() - start) / steps
