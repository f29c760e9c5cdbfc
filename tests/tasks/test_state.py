"""Parity, the stack and the needle: their rules by brute force, token by token."""

import numpy as np
import pytest

from experiments.tasks import Needle, Parity, Stack

PARITY = Parity(min_length=3, max_length=11, validation=40, test=4)
STACK = Stack(vocab_size=5, length=21, depths=(1, 3, 5), validation=90)
NEEDLE = Needle(vocab_size=9, length=14, bands=4, validation=80)


def rows_of(task):
    for batch in [task.batch(1, 2, 30), *task.evaluation("validation", 10)]:
        fields = (batch.tokens, batch.lengths, batch.labels, batch.weights, batch.slices)
        yield from zip(*(x.tolist() for x in fields))


def test_parity_counts_ones():
    seen = set()
    for tokens, length, label, weight, band in rows_of(PARITY):
        bits = [t - 1 for t in tokens[:length]]
        assert tokens[length:] == [0] * (11 - length)
        assert set(bits) <= {0, 1}
        assert label == sum(bits) % 2
        assert weight == 1
        low, high = PARITY.slices[band].removesuffix(" bits").split("-")
        assert int(low) <= length <= int(high)
        seen.add(length)
    assert seen == set(range(3, 12))
    assert PARITY.slices == ("3-4 bits", "5-6 bits", "7-8 bits", "9-11 bits")
    assert Parity(min_length=1, max_length=5).slices == ("1 bit", "2 bits", "3 bits", "4-5 bits")


def test_what_is_popped_was_pushed_last():
    deepest = dict.fromkeys(range(3), 0)
    for tokens, length, labels, weights, kind in rows_of(STACK):
        assert length == 21
        stack = []
        for token, label, weight in zip(tokens, labels, weights):
            assert weight == (token == 1)
            if token == 1:
                assert label == stack.pop()
            else:
                assert label == 0
                assert 2 <= token < 5
                stack.append(token)
            deepest[kind] = max(deepest[kind], len(stack))
    assert deepest == {0: 1, 1: 3, 2: 5}


def test_a_push_is_as_likely_as_a_pop():
    tokens = Stack(length=12, depths=(12,)).batch(0, 0, 30_000).tokens
    pops = tokens == 1
    depth = np.cumsum(np.where(pops, -1, 1), 1)
    share = pops[:, 1:][depth[:, :-1] > 0].mean()
    assert share == pytest.approx(0.5, abs=0.005)


def test_the_needle_is_found_where_its_band_says():
    places = {}
    for tokens, _, labels, weights, band in rows_of(NEEDLE):
        key = tokens[-1]
        at = tokens.index(key)
        assert [t for t, x in enumerate(tokens) if x == key] == [at, 13]
        assert labels == [0] * 13 + [tokens[at + 1]]
        assert weights == [0.0] * 13 + [1.0]
        assert 1 <= key < 4 <= labels[-1] < 9
        places.setdefault(band, set()).add(at)
    assert [sorted(places[band]) for band in range(4)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
    assert NEEDLE.slices == ("depth 0-25%", "depth 25-50%", "depth 50-75%", "depth 75-100%")


def test_filler_is_every_token_but_the_key():
    tokens = NEEDLE.batch(0, 0, 4000).tokens
    rows = tokens[(tokens[:, -1] == 2) & (tokens[:, 0] != 2), 0]
    assert set(rows.tolist()) == {1, *range(3, 9)}
    share = np.bincount(rows)[[1, *range(3, 9)]] / rows.size
    assert np.abs(share - 1 / 7).max() < 0.04


@pytest.mark.parametrize(
    ("task", "name", "fields"),
    [
        (Parity, "min_length", {"min_length": 0}),
        (Parity, "max_length", {"min_length": 9, "max_length": 11}),
        (Stack, "vocab_size", {"vocab_size": 3}),
        (Stack, "length", {"length": 1}),
        (Stack, "depths", {"depths": ()}),
        (Stack, "depths", {"depths": (2, 2)}),
        (Stack, "depths", {"depths": (0,)}),
        (Needle, "vocab_size", {"vocab_size": 5}),
        (Needle, "bands", {"bands": 0}),
        (Needle, "length", {"length": 6, "bands": 5}),
    ],
)
def test_bad_fields_are_refused(task, name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        task(**fields)
