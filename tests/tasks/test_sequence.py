"""Reversing, sorting, dates and numbers: each target is that of its source, read back."""

import re
from datetime import date, datetime

import pytest

from experiments.tasks import Dates, Numbers, Reverse, Sort
from experiments.tasks.dates import FORMATS, ISO
from experiments.tasks.numbers import words
from experiments.tasks.sequence import END, ids


def rows_of(task):
    for batch in [task.batch(1, 2, 60), *task.evaluation("validation", 25)]:
        real = batch.weights.any(1)
        for tokens, length, labels, weights, index in zip(
            *(
                x[real].tolist()
                for x in (batch.tokens, batch.lengths, batch.labels, batch.weights, batch.slices)
            )
        ):
            assert END not in tokens
            n = labels.index(END)
            assert set(labels[n + 1 :]) <= {0}
            assert weights == [1.0] * (n + 1) + [0.0] * (len(labels) - n - 1)
            yield tokens[:length], labels[:n], task.slices[index]


def texts_of(task):
    for source, target, name in rows_of(task):
        read = lambda tokens, target: "".join(task.characters(tokens, target=target))
        yield read(source, False), read(target, True), name


@pytest.mark.parametrize(("kind", "rule"), [(Reverse, lambda x: x[::-1]), (Sort, sorted)])
def test_symbols(kind, rule):
    task = kind(vocab_size=9, lengths=(4, 6, 3), validation=40, test=40)
    seen = set()
    for source, target, name in rows_of(task):
        assert target == rule(source)
        assert set(source) <= set(range(2, 9))
        seen.add((len(source), name))
    assert seen == {(4, "4 symbols"), (6, "6 symbols"), (3, "3 symbols")}


FORMAT = {
    "3 march 2001": "%d %B %Y",
    "March 3, 2001": "%B %d, %Y",
    "Saturday, 3rd of March 2001": "%A, %d of %B %Y",
    "03/03/2001": "%d/%m/%Y",
    "saturday 3 mar 01": "%A %d %b %y",
    "3.3.01": "%d.%m.%y",
}


def test_dates_are_what_the_standard_library_reads():
    names, longest = set(), 0
    for source, target, name in texts_of(Dates(validation=300)):
        written = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", source)
        assert datetime.strptime(written, FORMAT[name]).date().isoformat() == target
        names.add(name)
    assert names == set(FORMAT)
    days = [date.fromordinal(date(2000, 1, 1).toordinal() + n) for n in range(7 * 366)]
    longest = max(len(write(day)) for write in FORMATS for day in days)
    assert longest == Dates().length


@pytest.mark.parametrize("n", [1, 2, 3, 4, 11, 12, 13, 20, 21, 22, 23, 30, 31])
def test_ordinals(n):
    written = FORMATS[2](date(2001, 1, n))
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}.get(n, "th")
    assert f" {n}{ending} of" in written


def value(written: str) -> int:
    """Read from left to right, as children do."""
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    ones = [*ones.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
    tens = ["", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split()]
    total = part = 0
    for word in written.split():
        if word == "hundred":
            part *= 100
        elif word == "thousand":
            total, part = part * 1000, 0
        elif word != "and":
            part += ones.index(word) if word in ones else 10 * tens.index(word)
    return total + part


def test_numbers():
    assert words(402) == "four hundred and two"
    assert words(7_021) == "seven thousand and twenty one"
    assert words(110_100) == "one hundred and ten thousand one hundred"
    assert all(value(words(n)) == n for n in [*range(1200), *range(1000, 10**6, 997)])
    for source, digits, name in texts_of(Numbers(validation=60)):
        assert value(source) == int(digits)
        assert name == ("with 0" if "0" in digits else "without 0")
    for digits in range(1, 5):
        longest = max(len(words(n)) for n in range(10**digits))
        assert Numbers(digits=digits).length == longest
        assert Numbers(digits=digits).target_length == digits + 1


def test_tokens_are_read_by_the_characters_of_their_side():
    written = [*ids("2001", ISO), END, 0]
    assert Dates().characters(written, target=True) == [*"2001", "end", "<0>"]
    assert Reverse().characters([5, END, 0], target=False) == ["5", "end", "0"]


@pytest.mark.parametrize(
    ("task", "name", "fields"),
    [
        (Reverse, "lengths", {"lengths": ()}),
        (Reverse, "lengths", {"lengths": (4, 4)}),
        (Sort, "lengths", {"lengths": (0,)}),
        (Sort, "vocab_size", {"vocab_size": 3}),
        (Numbers, "digits", {"digits": 7}),
        (Dates, "validation", {"validation": 0}),
    ],
)
def test_bad_fields_are_refused(task, name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        task(**fields)
