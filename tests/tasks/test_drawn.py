"""Copying, induction and state tracking: their rules by brute force, and how rows are drawn."""

import numpy as np
import pytest

from experiments.tasks import Copy, Induction, Modular, Numbers, Parity, SelectiveCopy

NOTHING = 0


def rows_of(task):
    for batch in [task.batch(1, 2, 30), *task.evaluation("validation", 25)]:
        assert (batch.lengths == task.length).all()
        real = batch.weights.any(1)
        yield from zip(*(x[real].tolist() for x in (batch.tokens, batch.labels, batch.weights)))


def test_copy_asks_for_the_sequence_again():
    task = Copy(vocab_size=9, symbols=7, validation=40)
    for tokens, labels, weights in rows_of(task):
        x = tokens[:7]
        assert tokens == [*x, 1, *x[:-1]]
        assert labels == [NOTHING] * 7 + x
        assert weights == [0.0] * 7 + [1.0] * 7
        assert set(x) <= set(range(2, 9))


def test_selective_copy_asks_for_the_symbols_in_order():
    task = SelectiveCopy(vocab_size=9, symbols=4, length=21, validation=40)
    for tokens, labels, weights in rows_of(task):
        assert tokens[-4:] == [2] * 4
        assert set(tokens[:-4]) <= {1, *range(3, 9)}
        symbols = [t for t in tokens[:-4] if t != 1]
        assert len(symbols) == 4
        assert labels == [NOTHING] * 17 + symbols
        assert weights == [0.0] * 17 + [1.0] * 4


def test_symbols_stand_anywhere():
    tokens = SelectiveCopy(symbols=2, length=12).batch(0, 0, 20_000).tokens
    share = (tokens[:, :10] > 2).mean(0)
    np.testing.assert_allclose(share, 0.2, atol=0.015)


def test_induction_asks_what_followed():
    task = Induction(vocab_size=6, length=9, validation=40)
    places = set()
    for tokens, labels, weights in rows_of(task):
        at = tokens.index(1)
        places.add(at)
        assert [t for t, x in enumerate(tokens) if x == 1] == [at, 8]
        assert labels == [NOTHING] * 8 + [tokens[at + 1]]
        assert weights == [0.0] * 8 + [1.0]
    assert places == set(range(7))  # not right before the end, where nothing would follow it


def test_induction_is_trained_on_the_first_length_and_evaluated_on_all():
    task = Induction(vocab_size=6, length=9, lengths=(4, 9, 7), validation=40, test=3)
    assert task.slices == ("4 tokens", "9 tokens", "7 tokens")
    trained = task.batch(1, 2, 30)
    assert (trained.lengths == 4).all()
    assert (trained.slices == 0).all()
    assert trained.tokens.shape == trained.labels.shape == (30, 4)
    (held_out,) = task.evaluation("validation", 40)
    assert (held_out.lengths == np.resize([4, 9, 7], 40)).all()
    assert (held_out.slices == np.arange(40) % 3).all()
    for batch in (trained, held_out):
        for x, labels, n in zip(batch.tokens, batch.labels, batch.lengths):
            assert x[n - 1] == 1
            assert (x[n:] == 0).all()
            answer = [x[np.argmax(x == 1) + 1]]
            assert labels.tolist() == [0] * (n - 1) + answer + [0] * (len(x) - n)


@pytest.mark.parametrize("modulus", [2, 5])
def test_modular_is_the_sum_so_far(modulus):
    for tokens, labels, weights in rows_of(Modular(modulus=modulus, length=13, validation=40)):
        digits = [t - 1 for t in tokens]
        assert labels == [sum(digits[: t + 1]) % modulus for t in range(13)]
        assert weights == [1.0] * 13


def test_the_last_digit_is_as_good_as_its_baseline_says():
    task = Modular(modulus=3, length=7, validation=3000)
    (batch,) = task.evaluation("validation", 3000)
    right = (batch.tokens - 1 == batch.labels).mean()
    assert right == pytest.approx(task.baselines()["the last digit"], abs=0.01)


@pytest.mark.parametrize(
    ("task", "name", "fields"),
    [
        (Copy, "vocab_size", {"vocab_size": 3}),
        (Copy, "symbols", {"symbols": 0}),
        (SelectiveCopy, "length", {"symbols": 8, "length": 15}),
        (SelectiveCopy, "vocab_size", {"vocab_size": True}),
        (Induction, "length", {"length": 2}),
        (Induction, "lengths", {"length": 9, "lengths": (10,)}),
        (Induction, "lengths", {"length": 9, "lengths": (4, 4)}),
        (Modular, "modulus", {"modulus": 1}),
        (Modular, "length", {"length": 2.0}),
        (Copy, "validation", {"validation": 0}),
        (Modular, "test", {"test": -1}),
    ],
)
def test_bad_fields_are_refused(task, name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        task(**fields)


@pytest.mark.parametrize(
    "task",
    [
        Numbers(digits=2, validation=60, test=60),
        Modular(length=9, validation=100, test=100),
        Parity(min_length=6, max_length=11, validation=90, test=90),
        Induction(vocab_size=6, length=8, lengths=(6, 8), validation=300, test=300),
    ],
    ids=lambda task: task.stream,
)
def test_no_row_is_in_two_splits_even_where_little_is_left(task):
    rows = lambda batches: {row.tobytes() for batch in batches for row in batch.tokens}
    validation, test = (rows(task.evaluation(split, 10)) for split in ("validation", "test"))
    trained = rows(task.batch(0, step, 16) for step in range(20))
    assert len(validation | test) > 50
    assert trained
    assert not validation & test
    assert not (validation | test) & trained


@pytest.mark.parametrize(
    "task",
    [
        Numbers(digits=1),  # validation holds all there are, so that test finds none
        Modular(length=9, validation=900, test=400),
        Parity(min_length=1, max_length=8, validation=300, test=100),
    ],
    ids=lambda task: task.stream,
)
def test_splits_that_leave_too_little_are_refused_before_training(task):
    with pytest.raises(ValueError, match=r"^validation, test: expected .*, got .* held out"):
        task.fingerprint()
