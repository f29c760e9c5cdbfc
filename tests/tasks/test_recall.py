"""Recall's rule by brute force, token by token."""

import dataclasses

import numpy as np
import pytest

from experiments.tasks import Recall, RecallMixed
from experiments.tasks.recall import sequences

TIGHT = Recall(vocab_size=34, length=64, pairs=(1, 3, 16), validation=50, test=50)
QUIET = Recall(vocab_size=34, length=64, pairs=(3,), noise=False, validation=50, test=50)


@pytest.mark.parametrize(
    "task", [TIGHT, QUIET, Recall(validation=50)], ids=["tight", "quiet", "zoology"]
)
def test_every_query_is_answered_by_its_keys_value(task):
    batches = [task.batch(1, 2, 30), *task.evaluation("validation", 25)]
    for batch in batches:
        assert (batch.lengths == task.length).all()
        for tokens, labels, weights, index in zip(
            batch.tokens.tolist(), batch.labels.tolist(), batch.weights, batch.slices
        ):
            kv = task.pairs[index]
            check_row(tokens, labels, np.flatnonzero(weights), kv, task)


def check_row(tokens, labels, asked, kv, task):
    bound = dict(zip(tokens[0 : 2 * kv : 2], tokens[1 : 2 * kv : 2]))
    assert len(bound) == len(set(bound.values())) == kv
    assert all(1 <= key < task.vocab_size // 2 <= value for key, value in bound.items())
    assert ((asked >= 2 * kv) & (asked % 2 == 0)).all()
    assert sorted(tokens[i] for i in asked) == sorted(bound)  # each key once
    assert all(labels[i] == bound[tokens[i]] for i in asked)
    rest = [t for i, t in enumerate(tokens) if i >= 2 * kv and i not in asked]
    assert not bound.keys() & set(rest)  # no filler is a key
    assert task.noise == any(rest)


MIXED = RecallMixed(
    vocab_size=64,
    lengths=(16, 33, 33),
    pairs=(2, 2, 4),
    shares=(3, 1, 2),
    held_lengths=(20, 48),
    held_pairs=(1, 6),
    validation=50,
    test=50,
)


def test_a_mixture_trains_on_some_sizes_and_asks_about_others():
    batch = MIXED.batch(1, 2, 60)
    kinds = list(zip(batch.lengths.tolist(), batch.weights.sum(1).astype(int).tolist()))
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts == {(16, 2): 30, (33, 2): 10, (33, 4): 20}
    held = [*MIXED.evaluation("test", 25)]
    assert MIXED.slices == ("1 pair in 20", "6 pairs in 48")
    assert {(n, s) for b in held for n, s in zip(b.lengths, b.slices)} == {(20, 0), (48, 1)}
    assert (MIXED.train_length, MIXED.length) == (33, 48)
    for one, width in [(batch, 33), *((x, 48) for x in held)]:
        assert one.tokens.shape == one.labels.shape == one.weights.shape == (len(one.tokens), width)
        for tokens, labels, weights, n in zip(one.tokens, one.labels, one.weights, one.lengths):
            assert not tokens[n:].any()
            kv = int(weights.sum())
            row = tokens[:n].tolist(), labels[:n].tolist(), np.flatnonzero(weights)
            check_row(*row, kv, MIXED)


def test_a_held_out_row_is_not_trained_on_where_training_rows_are_narrower():
    """90 rows of 4 tokens there are, and some 40 of them are held out, as rows of 12."""
    one = {"lengths": (4,), "pairs": (1,), "shares": (1,)}
    held = {"held_lengths": (4, 12), "held_pairs": (1, 1), "validation": 40, "test": 40}
    task = RecallMixed(vocab_size=20, noise=False, **one, **held)
    short = lambda batch: {tuple(row[:4]) for row in batch.tokens[batch.lengths == 4].tolist()}
    splits = [short(*task.evaluation(name, 40)) for name in ("validation", "test")]
    assert all(len(split) > 10 for split in splits)
    assert not splits[0] & splits[1]
    trained = short(task.batch(0, 0, 500))
    assert len(trained) > 40
    assert not trained & (splits[0] | splits[1])


def test_what_a_mixture_knows_without_learning():
    batch = MIXED.examples("validation", np.arange(50))
    found = MIXED.baselines()
    assert found["chance"] == 1 / 32
    assert found["any value of the prefix"] == pytest.approx(50 / batch.weights.sum())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"shares": (1, 2)}, "shares: expected a tuple of integers, one for each of lengths"),
        ({"shares": (0, 1, 1)}, "shares: expected an integer"),
        ({"held_pairs": (1, 13)}, "held_lengths: expected >= 4 "),
        ({"held_lengths": (), "held_pairs": ()}, "held_lengths: expected a tuple"),
        ({"held_lengths": (20, 20), "held_pairs": (1, 1)}, "held_lengths, held_pairs: expected"),
        ({"vocab_size": 13}, "vocab_size: expected >= 14 for 6 keys"),
    ],
)
def test_sizes_that_do_not_go_together_are_named(fields, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        dataclasses.replace(MIXED, **fields)


def test_slices_are_mixed_evenly():
    slices = [TIGHT.batch(0, step, 5).slices for step in range(3)]
    assert np.bincount(np.concatenate(slices)).tolist() == [5, 5, 5]
    assert TIGHT.slices == ("1 pair", "3 pairs", "16 pairs")


def test_fillers_are_every_other_token():
    tokens, labels = sequences(
        np.random.default_rng(0), 4000, 2, vocab_size=10, length=16, alpha=0.5
    )
    for row, label in zip(tokens[:50], labels[:50]):
        assert set(row) <= set(range(1, 10))
        assert (label > 0).sum() == 2
    keys = tokens[:, 0:4:2]
    rows = (keys == [1, 3]).all(axis=1)
    rest = tokens[rows, 4:][labels[rows, 4:] == 0]
    assert set(rest.tolist()) == {2, 4, 5, 6, 7, 8, 9}
    share = np.bincount(rest)[[2, 4, 5, 6, 7, 8, 9]] / rest.size
    assert np.abs(share - 1 / 7).max() < 0.02


def test_noise_changes_nothing_else():
    draw = lambda noise: sequences(
        np.random.default_rng(0), 50, 3, vocab_size=34, length=32, alpha=0.01, noise=noise
    )
    (quiet, asked), (noisy, labels) = draw(False), draw(True)
    said = (np.arange(32) < 6) | (asked > 0)
    assert (quiet == np.where(said, noisy, 0)).all()
    assert (asked == labels).all()


@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_gaps_follow_the_power_law(alpha):
    _, labels = sequences(
        np.random.default_rng(0), 20_000, 1, vocab_size=10, length=18, alpha=alpha
    )
    counts = np.count_nonzero(labels, axis=0)
    law = np.arange(1, 9) ** (alpha - 1.0)
    assert counts[:2].sum() == counts[3::2].sum() == 0
    assert np.abs(counts[2::2] / 20_000 - law / law.sum()).max() < 0.015


def test_keys_and_values_are_uniform():
    tokens, _ = sequences(np.random.default_rng(0), 9000, 3, vocab_size=12, length=12, alpha=0.01)
    assert np.abs(np.bincount(tokens[:, 0:6:2].ravel())[1:] / 27_000 - 1 / 5).max() < 0.01
    assert np.abs(np.bincount(tokens[:, 1:6:2].ravel())[6:] / 27_000 - 1 / 6).max() < 0.01


def test_guessing_a_bound_value_is_a_baseline():
    baselines = Recall(vocab_size=64, length=32, pairs=(2, 8), validation=40).baselines()
    assert baselines["chance"] == 1 / 32
    assert baselines["any value of the prefix"] == 0.2


@pytest.mark.parametrize("pairs", [(1,), (8,), (2, 8, 5)], ids=str)
def test_the_order_of_questions_tells_of_the_keys_unless_alpha_is_1(pairs):
    found = {}
    for alpha in (0.01, 1.0):
        task = Recall(vocab_size=64, length=32, pairs=pairs, alpha=alpha, validation=2000)
        rungs = task.baselines()
        (batch,) = task.evaluation("validation", 2000)
        right = []
        for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist()):
            answers = [label for label in labels if label]
            right += [a == v for a, v in zip(answers, tokens[1 : 2 * len(answers) : 2])]
        found[alpha] = rungs["k-th question, k-th value"]
        assert found[alpha] == pytest.approx(np.mean(right))
    assert found[1.0] == pytest.approx(rungs["any value of the prefix"], abs=0.015)
    assert found[0.01] > found[1.0] + 0.05 or pairs == (1,)


def test_training_has_no_end_and_cannot_be_evaluated():
    assert Recall().size("train") is None
    with pytest.raises(ValueError, match="split: expected a finite split"):
        Recall().evaluation("train", 8)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("length", {"pairs": (4, 17)}),
        ("length", {"length": 0}),
        ("pairs", {"pairs": ()}),
        ("pairs", {"pairs": (4, 4)}),
        ("pairs", {"pairs": [4]}),
        ("pairs", {"pairs": (0,)}),
        ("vocab_size", {"vocab_size": 9}),
        ("vocab_size", {"vocab_size": 64.0}),
        ("pairs", {"pairs": ([4],)}),
        ("alpha", {"alpha": 0.0}),
        ("alpha", {"alpha": float("inf")}),
        ("noise", {"noise": 0}),
        ("validation", {"validation": 0}),
        ("test", {"test": -1}),
    ],
)
def test_bad_fields_are_refused(name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        Recall(**fields)
