"""Long Range Arena and MQAR at full size: the published settings, each of which takes a step."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from small_files import PAIR_SIZES, REVIEW_SIZES, colours, pairs, reviews

from experiments.config_file import read, read_sweep
from experiments.learner import Learner
from experiments.studies.lra import published

CONFIGS = Path(__file__).parents[2] / "configs"

# width, heads, layers, qkv, MLP, dropout; length, batch, steps; rate, its schedule and decay; pool
FULL_SIZE = {
    "listops": (512, 8, 4, 512, 1024, 0.1, 2000, 32, 5_000, 0.05, "rsqrt", 1000, 0.1, "cls"),
    "text": (256, 4, 4, 256, 1024, 0.1, 4000, 32, 20_000, 0.05, "rsqrt", 8000, 0.1, "cls"),
    "retrieval": (128, 4, 4, 128, 512, 0.1, 4000, 32, 5_000, 0.05, "rsqrt", 8000, 0.1, "cls"),
    "image": (32, 1, 1, 32, 64, 0.3, 1024, 256, 35_000, 5e-4, "cosine", 175, 0, "cls"),
    "pathfinder": (32, 2, 1, 16, 32, 0.1, 1024, 512, 62_400, 1e-3, "cosine", 312, 0, "mean"),
    "pathx": (32, 2, 1, 16, 32, 0.1, 16_384, 64, 500_000, 1e-3, "cosine", 2_500, 0, "mean"),
}
# what makes a step small: lengths where two cores would take long, and the sizes of small files
SHORT = ("task.max_length=128",)
CUT = {
    "listops": (*SHORT, "task.min_length=9", "task.train=8", "task.validation=4", "task.test=4"),
    "text": (*SHORT, *(f"task.{split}={size}" for split, size in REVIEW_SIZES.items())),
    "retrieval": (*SHORT, *(f"task.{split}={size}" for split, size in PAIR_SIZES.items())),
    "image": ("task.train=200", "task.validation=100", "task.test=60"),
    "pathfinder": ("task.validation=4", "task.test=4"),
    "pathx": ("task.validation=4", "task.test=4", "task.resolution=32"),
    "mqar": ("task.validation=4", "task.test=4"),
    "mqar_mixed": ("task.validation=7", "task.test=7"),
    "bytes_large": ("task.length=32",),
}
FILES = {"text": reviews, "retrieval": pairs, "image": colours}
VARIANTS = [
    *((name, "softmax") for name in FULL_SIZE),
    ("image", "linear"),
    ("mqar", "256"),
    ("mqar_mixed", ""),
    ("bytes_large", "softmax"),
]


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_config_is_as_published(name):
    path = f"{CONFIGS / name}.py"
    e = read(f"{path}:softmax")
    m, o = e.model, e.optimizer
    qkv = m.heads * (m.head_dim or m.width // m.heads)
    sizes = (m.width, m.heads, m.layers, qkv, m.mlp_width, m.dropout)
    how = (o.learning_rate, o.schedule, o.warmup_steps, o.weight_decay, m.pooling)
    assert (*sizes, e.task.length, e.train.batch_size, e.train.steps, *how) == FULL_SIZE[name]
    assert (o.b1, o.b2, o.eps) == (0.9, 0.98, 1e-9)
    assert o.clip_norm == (1.0 if name == "pathx" else None)
    assert m.attention.dropout_rate == (0.2 if name == "image" else 0.1)
    ways = {one.model.attention for _, one in read_sweep(path)}
    assert len(ways) == len(published.models()) + len(published.MODERN)


# width, heads, layers, qkv, MLP, dropout; of weights; decay; pool
OWN = {
    ("image", "softmax"): (128, 8, 1, 64, 128, 0.3, 0.2, 0, "cls"),
    ("image", "bigbird"): (128, 1, 1, 64, 128, 0.3, 0.2, 0, "cls"),
    ("image", "longformer"): (128, 4, 4, 64, 128, 0.3, 0.2, 0, "mean"),
    ("image", "sinkhorn"): (32, 1, 1, 32, 64, 0.1, 0.0, 0.7, "cls"),
    ("image", "gla"): (128, 8, 1, 64, 128, 0.3, 0.0, 0, "mean"),
    ("pathfinder", "softmax"): (32, 4, 4, 16, 32, 0.2, 0.1, 0, "mean"),
    ("pathfinder", "performer"): (32, 8, 4, 16, 32, 0.2, 0.0, 0, "mean"),
    ("listops", "synthesizer"): (512, 8, 4, 512, 1024, 0.1, 0.1, 0.1, "cls"),
}


@pytest.mark.parametrize(("name", "model"), OWN)
def test_a_published_model_has_its_own_sizes(name, model):
    cells = dict(zip(published.variants(), read_sweep(f"{CONFIGS / name}.py"), strict=True))
    e = cells[model][1]
    m, weights = e.model, e.model.attention.dropout_rate
    sizes = (m.width, m.heads, m.layers, m.heads * m.head_dim if m.head_dim else m.width)
    more = (m.mlp_width, m.dropout, weights, e.optimizer.weight_decay, m.pooling)
    assert sizes + more == OWN[name, model]


@pytest.mark.parametrize(
    ("length", "pairs", "batch"), [(64, 4, 512), (128, 8, 512), (256, 16, 256)]
)
def test_recall_at_full_size_is_as_published(length, pairs, batch):
    e = read(f"{CONFIGS}/mqar.py:{length}")
    task, m = e.task, e.model
    assert (task.vocab_size, task.length, task.pairs, task.alpha) == (8192, length, (pairs,), 0.01)
    assert not task.noise
    assert (e.optimizer.weight_decay, e.optimizer.clip_norm) == (0.1, None)
    assert (m.layers, m.heads, m.mlp_width, e.train.batch_size) == (2, 1, 0, batch)
    assert e.train.steps == 64 * 100_000 // batch
    assert {x.model.width for _, x in read_sweep(f"{CONFIGS}/mqar.py")} == {64, 128, 256, 512}


def test_mixed_recall_at_full_size_is_as_published():
    e = read(f"{CONFIGS}/mqar_mixed.py")
    task = e.task
    assert [*zip(task.lengths, task.pairs)] == [(64, 4), (128, 8), (256, 16), (256, 32), (256, 64)]
    assert task.shares == (5, 1, 1, 1, 1)  # 100,000 rows and 20,000 of each other
    held = [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    assert [*zip(task.held_lengths, task.held_pairs)] == held
    assert (task.vocab_size, task.alpha, task.noise, task.test) == (8192, 0.01, True, 7000)
    assert (e.train.steps, e.train.batch_size) == (22_500, 256)
    assert (e.model.layers, e.model.mlp_width, e.model.positions) == (2, 0, "none")
    states = {(x.model.width, x.model.head_dim) for _, x in read_sweep(f"{CONFIGS}/mqar_mixed.py")}
    assert {(w, n) for w in (48, 64, 128) for n in (8, 16, 24)} < states


def test_the_large_language_model_is_as_published():
    e = read(f"{CONFIGS}/bytes_large.py:softmax")
    m, o, t = e.model, e.optimizer, e.train
    assert (m.layers, m.heads, m.width, m.mlp_width, m.dropout) == (6, 6, 384, 1536, 0.2)
    assert m.attention.dropout_rate == 0.2
    assert (e.task.length, t.batch_size, t.steps) == (256, 64, 5000)
    rates = (o.learning_rate, o.final_learning_rate, o.warmup_steps, o.weight_decay, o.b2)
    assert rates == (1e-3, 1e-4, 100, 0.1, 0.99)


@pytest.mark.parametrize("task", published.TASKS[:-1])
def test_a_config_tells_what_was_published(task):
    said = " ".join((CONFIGS / f"{task}.py").read_text().split())
    for name, accuracy in published.ACCURACY[task].items():
        assert f"{accuracy:.2f} {name}" in said, name


def test_published_averages_are_those_of_the_tasks():
    of = published.ACCURACY
    mean = {
        name: np.mean([of[task][name] for task in published.TASKS[:-1]]) for name in of["average"]
    }
    off = {name for name, x in of["average"].items() if abs(mean[name] - x) > 0.011}
    assert off == {"sinkhorn"}  # 51.29 there, where its five have a mean of 51.48


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), VARIANTS)
def test_a_full_size_config_takes_a_step(name, argument, tmp_path):
    small = ["train.batch_size=2", "train.eval_batch_size=2", *CUT[name]]
    if name in FILES:
        small.append(f"task.data_dir={FILES[name](tmp_path)}")
    path = f"{CONFIGS / name}.py" + (f":{argument}" if argument else "")
    e = read(path, [f"--config.{x}" for x in small])
    learner = Learner(e)
    state = jax.jit(learner.init)()
    batch = e.task.batch(e.seed, 0, e.train.batch_size)
    state, found = jax.jit(learner.train_step)(state, batch, np.int32(0))
    assert int(state.step) == 1
    assert found["finite"].all()
    assert found["gradient_norm"] > 0
    chance = math.log(e.task.classes)
    assert chance / 2 < found["loss"] < 2 * chance
