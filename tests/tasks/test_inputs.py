"""A task's inputs as what is asked: masked as BERT masks, or the next token."""

import math
from collections import Counter

import numpy as np
import pytest

from experiments.config import Model
from experiments.errors import ConfigError
from experiments.tasks import Bytes, Digits, Induction, Inputs, ListOps, Recall, Text
from experiments.tasks.base import majority
from experiments.validation import from_dict

LISTOPS = ListOps(min_length=8, max_length=40, train=301, validation=53, test=47)


def posed(objective, task=LISTOPS, rate=0.15):
    return Inputs(task=task, objective=objective, rate=rate)


def test_next_tokens_are_asked_up_to_the_end_of_a_row():
    batch, raw = posed("causal").batch(0, 2, 9), LISTOPS.batch(0, 2, 9)
    np.testing.assert_array_equal(batch.tokens, raw.tokens)
    for row, n in enumerate(raw.lengths):
        np.testing.assert_array_equal(batch.labels[row, : n - 1], raw.tokens[row, 1:n])
        assert batch.weights[row].sum() == batch.weights[row, : n - 1].sum() == n - 1


def test_a_share_of_each_row_is_hidden_as_in_bert():
    rate, batch = 0.25, posed("masked", Digits(), 0.25).batch(0, 2, 600)
    raw, asked = Digits().batch(0, 2, 600), batch.weights > 0
    assert (asked.sum(1) == round(64 * rate)).all()
    np.testing.assert_array_equal(batch.labels[asked], raw.tokens[asked])
    np.testing.assert_array_equal(batch.tokens[~asked], raw.tokens[~asked])
    hidden = batch.tokens[asked] == 0
    same = batch.tokens[asked] == raw.tokens[asked]
    assert np.mean(hidden) == pytest.approx(0.8, abs=0.02)
    # one in ten is left, and one in seventeen of those replaced meets itself
    assert np.mean(same) == pytest.approx(0.1 + 0.1 / 17, abs=0.02)
    assert np.mean(asked, 0) == pytest.approx(rate, abs=0.1)  # any position


def test_padding_is_never_asked_and_counts_for_nothing():
    task = posed("masked")
    for batch in task.evaluation("validation", 53):
        asked, lengths = batch.weights > 0, batch.lengths
        assert not (asked & (np.arange(40) >= lengths[:, None])).any()
        assert (asked.sum(1) == np.maximum(1, np.round(0.15 * lengths))).all()
        assert asked.sum(1).max() <= task.asked


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_training_rows_may_be_narrower(objective):
    task = Induction(length=20, lengths=(9, 20), validation=40, test=3)
    inputs = posed(objective, task)
    batch = inputs.checked(inputs.batch(0, 0, 8), 8)
    assert batch.tokens.shape == batch.labels.shape == batch.weights.shape == (8, 9)
    (held,) = inputs.evaluation("validation", 40)
    assert inputs.checked(held, 40).tokens.shape == (40, 20)


def test_nothing_between_the_tokens_of_a_row_is_not_asked():
    recall = Recall(vocab_size=64, noise=False, validation=40, test=3)
    batch, raw = posed("masked", recall, 0.5).batch(0, 0, 8), recall.batch(0, 0, 8)
    asked = batch.weights > 0
    assert (raw.tokens[asked] > 0).all()
    np.testing.assert_array_equal(asked.sum(1), np.round(0.5 * (raw.tokens > 0).sum(1)))


def test_held_out_rows_are_hidden_alike_in_any_batch():
    one = [b.tokens for b in posed("masked").evaluation("test", 47)]
    many = [b.tokens for b in posed("masked").evaluation("test", 5)]
    np.testing.assert_array_equal(one[0], np.concatenate(many)[:47])


@pytest.mark.parametrize("objective", ["label", "mask"])
def test_an_objective_that_is_none_is_not_taken_for_masked(objective):
    with pytest.raises(ValueError, match=r"^objective: expected 'masked' or 'causal', got"):
        posed(objective)


def test_training_rows_are_drawn_again():
    task = posed("masked")
    np.testing.assert_array_equal(task.batch(0, 1, 8).tokens, task.batch(0, 1, 8).tokens)
    again = (
        task.batch(0, 1, 8).weights
        != Inputs(task=LISTOPS, objective="masked").batch(1, 1, 8).weights
    )
    assert again.any()


def test_the_fingerprint_is_its_own():
    prints = {posed(o).fingerprint() for o in ("masked", "causal")} | {LISTOPS.fingerprint()}
    assert len(prints | {posed("masked", rate=0.5).fingerprint()}) == 4


def test_a_loss_over_bytes_is_told_in_bits_per_byte():
    for task, name in (
        (Bytes(), "bits_per_byte"),
        (Text(), "bits_per_byte"),
        (LISTOPS, "bits_per_token"),
    ):
        for objective in ("masked", "causal"):
            assert posed(objective, task).measures(math.log(2)) == {name: 1}


@pytest.mark.parametrize("task", [LISTOPS, Digits()], ids=["padded", "digits"])
@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_always_the_most_frequent_token_is_a_baseline(objective, task):
    posing = posed(objective, task)
    rows = posing.examples("validation", np.arange(task.size("validation")))
    asked = [
        int(label)
        for labels, weights in zip(rows.labels, rows.weights)
        for label, weight in zip(labels, weights)
        if weight
    ]
    found = posing.baselines()
    assert found["chance"] == 1 / (task.vocab_size - 1)
    assert found["most frequent token"] == Counter(asked).most_common(1)[0][1] / len(asked)
    assert found["most frequent token"] == majority(np.array(asked))
    if task == Digits():  # nearly half of the pixels are empty
        share = {"masked": 0.493, "causal": 0.484}[objective]
        assert found["most frequent token"] == pytest.approx(share, abs=5e-4)


def config(objective, causal):
    return {
        "task": {"name": "digits"},
        "model": {"causal": causal},
        "optimizer": {"learning_rate": 1e-3},
        "train": {"steps": 1, "batch_size": 1},
        "objective": objective,
    }


def test_answers_that_stand_in_later_tokens_are_for_causal_models():
    for name in ("bytes", "copy"):
        with pytest.raises(ConfigError, match=f"{name}, whose answers are later tokens"):
            from_dict({**config("label", False), "task": {"name": name}})
        from_dict({**config("label", True), "task": {"name": name}})


def test_a_rate_that_nothing_uses_is_refused():
    with pytest.raises(ConfigError, match="mask_rate: expected its default"):
        from_dict({**config("label", False), "mask_rate": 0.5})


@pytest.mark.parametrize(("objective", "causal"), [("masked", True), ("causal", False)])
def test_an_objective_that_sees_its_answer_is_refused(objective, causal):
    assert isinstance(from_dict(config(objective, not causal)).model, Model)
    with pytest.raises(ConfigError, match=r"model\.causal: expected"):
        from_dict(config(objective, causal))
