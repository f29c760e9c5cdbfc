"""Laws that every task keeps: purity, epochs, disjoint splits, one shape, values in range."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from small_files import PAIR_SIZES, colours, pairs, reviews

from experiments.tasks import (
    TASKS,
    Batch,
    Bytes,
    Copy,
    Dates,
    DigitPatches,
    Digits,
    Image,
    Induction,
    ListOps,
    Modular,
    Needle,
    Numbers,
    Parity,
    Pathfinder,
    PathfinderPatches,
    Recall,
    RecallMixed,
    Retrieval,
    Reverse,
    SelectiveCopy,
    Sort,
    Stack,
    Text,
)
from experiments.tasks.base import rng, shuffled
from experiments.tasks.drawn import whole_split

FILES = tempfile.TemporaryDirectory()  # as long as this module


def written(make) -> str:
    folder = Path(FILES.name, make.__name__)
    folder.mkdir()
    return str(make(folder))


SMALL = [
    Digits(),
    DigitPatches(),
    ListOps(min_length=8, max_length=40, train=301, validation=53, test=47),
    Recall(vocab_size=64, length=33, pairs=(2, 4, 8), validation=53, test=47),
    RecallMixed(
        vocab_size=64,
        lengths=(17, 33),
        pairs=(2, 4),
        shares=(2, 1),
        held_lengths=(17, 33, 41),
        held_pairs=(2, 8, 10),
        validation=53,
        test=47,
    ),
    Bytes(length=199),
    Copy(symbols=17, validation=53, test=47),
    SelectiveCopy(symbols=9, length=33, validation=53, test=47),
    Induction(length=33, validation=53, test=47),
    Modular(modulus=3, length=33, validation=53, test=47),
    Parity(min_length=24, max_length=40, validation=53, test=47),
    Stack(length=33, validation=53, test=47),
    Needle(length=33, validation=53, test=47),
    Pathfinder(dashes=6, validation=53, test=47),
    PathfinderPatches(resolution=16, dashes=6, distractors=False, validation=53, test=47),
    Image(data_dir=written(colours), train=253, validation=47, test=60),
    Retrieval(data_dir=written(pairs), max_length=40, **PAIR_SIZES),
    Text(data_dir=written(reviews), max_length=40, train=207, validation=53, test=60),
    Reverse(vocab_size=12, lengths=(9, 13), validation=53, test=47),
    Sort(vocab_size=12, lengths=(11,), validation=53, test=47),
    Dates(validation=53, test=47),
    Numbers(validation=53, test=47),
]
tasks = pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
ROOT = Path(__file__).parents[2]


def digest(task) -> str:
    batches = [task.batch(3, 5, 8), *task.evaluation("validation", 16)]
    arrays = [array.tobytes() for batch in batches for array in jax.tree.leaves(batch)]
    return hashlib.sha256(b"".join(arrays)).hexdigest()


def rows(task, split) -> set[bytes]:
    return {row.tobytes() for batch in task.evaluation(split, 64) for row in batch.tokens}


def test_the_table_names_every_task():
    assert {type(task) for task in SMALL} == set(TASKS.values())


def test_batches_are_equal_in_another_process():
    here = [[digest(task), task.fingerprint()] for task in SMALL]
    code = (
        "import json; from tests_tasks import SMALL, digest;"
        "print(json.dumps([[digest(t), t.fingerprint()] for t in SMALL]))"
    ).replace("tests_tasks", Path(__file__).stem)
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == here


@tasks
def test_batch_depends_on_seed_and_step(task):
    first = task.batch(0, 0, 16).tokens
    assert np.array_equal(first, task.batch(0, 0, 16).tokens)
    assert not np.array_equal(first, task.batch(1, 0, 16).tokens)
    assert not np.array_equal(first, task.batch(0, 1, 16).tokens)


@tasks
def test_shapes_types_and_ranges(task):
    batches = [(task.batch(0, 0, 16), task.train_length)]
    batches += [(batch, task.length) for batch in task.evaluation("validation", 16)]
    for batch, length in batches:
        task.checked(batch, 16)
        pair = (2,) if task.head == "dual" else ()
        vector = () if task.token_width is None else (task.token_width,)
        assert batch.tokens.shape == (16, *pair, length, *vector)
        assert batch.lengths.shape == (16, *pair)
        assert batch.slices.shape == (16,)
        shapes = {"classification": (16,), "dual": (16,), "token": (16, length)}
        if task.head == "sequence":
            shapes["sequence"] = (16, task.target_length)
        assert batch.labels.shape == batch.weights.shape == shapes[task.head]
        assert batch.tokens.dtype == (np.float32 if vector else np.int32)
        for name in ("lengths", "labels", "slices"):
            assert getattr(batch, name).dtype == np.int32
        assert batch.weights.dtype == np.float32
        assert set(np.unique(batch.weights)) <= {0.0, 1.0}
        inside = np.arange(length) < batch.lengths[..., None]
        if vector:
            assert np.abs(batch.tokens).max() <= 1
            assert task.vocab_size is None
        else:
            assert np.array_equal(batch.tokens > 0, inside)
            assert batch.tokens.max() < task.vocab_size
        assert 0 < batch.lengths.min() <= batch.lengths.max() <= task.length
        assert 0 <= batch.labels.min() <= batch.labels.max() < task.classes
        assert 0 <= batch.slices.min() <= batch.slices.max() < len(task.slices)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("tokens", lambda x: x + 8, "tokens: expected integers in 0..11, got int32 from"),
        ("tokens", lambda x: x[:, 1:], r"tokens: expected rows of shape \(13,\), got \(8, 12\)"),
        ("labels", lambda x: x - 1, "labels: expected integers in 0..11, got int32 from -1"),
        ("labels", lambda x: x / 2, "labels: expected integers in 0..11, got float64"),
        ("labels", lambda x: x > 1, "labels: expected integers in 0..11, got bool"),
        ("labels", lambda x: x.tolist(), "labels: expected an array of 8 rows, got 'list'"),
        ("labels", lambda x: x[..., None], r"labels: expected an array of the shape of weights"),
        ("weights", lambda x: x / 2, r"weights: expected 1 where a label .*, got \[0.5\]"),
        ("slices", lambda x: x + 2, "slices: expected integers in 0..1, got int32 from 2"),
        ("lengths", lambda x: x + 5, "lengths: expected integers in 0..13, got"),
        ("lengths", lambda x: x[:, None], r"lengths: expected an array of shape \(8,\), got"),
        ("slices", lambda x: x[:, None], r"slices: expected an array of shape \(8,\), got"),
        ("tokens", lambda x: np.stack([x, x], 1), r"tokens: expected rows of shape \(13,\)"),
    ],
)
def test_what_is_out_of_range_is_refused(name, wrong, told):
    """In a task of the user's own it made a loss of nan, or was clipped, or counted otherwise."""
    task = Reverse(vocab_size=12, lengths=(9, 13), validation=53, test=47)
    batch = task.checked(task.batch(0, 0, 8), 8)
    with pytest.raises(ValueError, match=told):
        task.checked(dataclasses.replace(batch, **{name: wrong(getattr(batch, name))}), 8)


def test_what_is_no_batch_of_so_many_rows_is_refused():
    """Fewer were trained on without a word, and paid for as if they were all."""
    task = Reverse(vocab_size=12, lengths=(9, 13), validation=53, test=47)
    batch = task.batch(0, 0, 8)
    with pytest.raises(ValueError, match=r"tokens: expected an array of 8 rows, got \(7, 13\)"):
        task.checked(batch[:7], 8)
    with pytest.raises(ValueError, match=r"batch: expected a Batch .*, got <class 'tuple'>"):
        task.checked((batch.tokens, batch.labels), 8)


@pytest.mark.parametrize("kind", [Parity, Copy, Dates])
def test_labels_of_other_axes_are_refused(kind):
    """They came to an error of jax's in the model, which named no field of the batch."""
    task = kind(validation=5, test=3)
    batch = task.batch(0, 0, 8)
    more = {name: getattr(batch, name)[..., None] for name in ("labels", "weights")}
    with pytest.raises(ValueError, match=r"weights: expected an array of shape \(8"):
        task.checked(dataclasses.replace(batch, **more), 8)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda x: vars(x), "batch: expected a Batch .*, got <class 'dict'>"),
        (lambda x: x[:3], "tokens: expected an array of 4 rows"),
    ],
)
def test_examples_that_are_no_batch_are_refused(monkeypatch, wrong, told):
    """A traceback said that a dict has no weights, or numpy that shapes cannot be broadcast."""
    task, examples = Parity(validation=5, test=3), Parity.examples
    monkeypatch.setattr(Parity, "examples", lambda self, *which: wrong(examples(self, *which)))
    with pytest.raises(ValueError, match=told):
        next(task.evaluation("validation", 4))


@tasks
@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_counts_every_row_once_whatever_the_batch_size(task, split):
    def counted(batch_size):
        batches = list(task.evaluation(split, batch_size))
        real = [batch.weights.reshape(batch_size, -1).any(axis=1) for batch in batches]
        return np.concatenate([batch.tokens[r] for batch, r in zip(batches, real)])

    assert len(counted(16)) == task.size(split)
    assert np.array_equal(counted(16), counted(task.size(split) + 5))


@tasks
def test_splits_are_disjoint(task):
    validation, test = rows(task, "validation"), rows(task, "test")
    assert len(validation) == task.size("validation")
    assert not validation & test
    steps = 5 if isinstance(task, Pathfinder) else 50  # images take long to draw
    train = {row.tobytes() for step in range(steps) for row in task.batch(0, step, 32).tokens}
    assert not train & (validation | test)


def stream_of(steps, size):
    return np.concatenate([shuffled(4, s * size + np.arange(size), 10) for s in range(steps)])


@pytest.mark.parametrize("batch_size", [1, 7, 10, 23])
def test_epochs_hit_each_index_once(batch_size):
    stream = stream_of(30, batch_size)
    stream = stream[: stream.size // 10 * 10].reshape(-1, 10)
    assert (np.sort(stream, axis=1) == np.arange(10)).all()
    assert not np.array_equal(stream[0], stream[1])


def test_order_of_an_epoch_does_not_depend_on_the_batch_size():
    streams = [stream_of(60 // size, size) for size in (1, 4, 15)]
    assert all(np.array_equal(stream, streams[0]) for stream in streams)


def test_streams_of_as_many_words_are_apart():
    first = lambda *words: rng(*words).random()
    words = [("a", i, j) for i in range(9) for j in range(9)]
    assert len({first(*w) for w in words}) == 81
    assert first("a", 1) == first("a", 1, 0)  # as the docstring warns
    assert first("a", 1) != first("a", 0, 1)


@tasks
def test_baselines_are_accuracies(task):
    values = list(task.baselines().values())
    assert values
    assert all(isinstance(value, float) and 0 < value <= 1 for value in values)


@pytest.mark.parametrize("name", ["labels", "weights"])
def test_the_fingerprint_is_of_all_that_is_drawn(monkeypatch, name):
    task, draw = Parity(validation=5, test=3), Parity.draw
    before = task.fingerprint()

    def other(self, random, number):
        batch = draw(self, random, number)
        return dataclasses.replace(batch, **{name: 1 - getattr(batch, name)})

    monkeypatch.setattr(Parity, "draw", other)
    whole_split.cache_clear()
    assert task.fingerprint() != before
    whole_split.cache_clear()


@tasks
def test_fields_survive_json_and_decide_the_fingerprint(task):
    fields = dataclasses.asdict(task)
    assert json.loads(json.dumps(fields)).keys() == fields.keys()
    assert len(task.fingerprint()) == 16
    assert len({other.fingerprint() for other in SMALL}) == len(SMALL)
    if "test" in fields and not fields.get("data_dir"):
        assert dataclasses.replace(task, test=46).fingerprint() != task.fingerprint()


@tasks
def test_a_batch_passes_through_jit(task):
    batch = task.batch(0, 0, 4)
    out = jax.jit(lambda b: b)(batch)
    assert isinstance(out, Batch)
    assert np.array_equal(out.tokens, batch.tokens)


@tasks
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("seed", (-1, 0, 4)),
        ("seed", (2**32, 0, 4)),
        ("step", (0, -1, 4)),
        ("batch_size", (0, 0, 0)),
        ("step", (0, 1.0, 4)),
    ],
)
def test_bad_draws_are_refused(task, name, arguments):
    with pytest.raises(ValueError, match=f"^{name}: expected .* got "):
        task.batch(*arguments)


@tasks
def test_bad_splits_are_refused(task):
    with pytest.raises(ValueError, match="split: expected one of train, validation, test"):
        task.evaluation("valid", 4)
    with pytest.raises(ValueError, match="batch_size"):
        task.evaluation("test", 0)
