"""Batches drawn ahead: in order, none beyond the end, none lost to one that cannot be drawn."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from experiments import ahead
from experiments.ahead import MOST, Ahead


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as one:
        yield one


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("calls", [1, MOST, 2 * MOST + 3])
def test_each_is_drawn_once_and_in_order_by_one_thread(thread, calls, seconds, monkeypatch):
    monkeypatch.setattr(ahead, "SECONDS", seconds)
    drawn, threads = [], set()

    def draw(number):
        drawn.append(number)
        threads.add(threading.get_ident())
        return -number

    numbers = range(4, 4 + 3 * calls, 3)
    batches = Ahead(thread, draw, numbers)
    taken = []
    for n in range(1, calls + 1):
        taken.append(batches.next())
        # memory holds what was drawn at once, and as much again
        assert len(drawn) - n < (2 * MOST if seconds else 2)
    assert taken == [-n for n in numbers]
    thread.submit(int).result()
    assert drawn == [*numbers]
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_what_cannot_be_drawn_is_told_when_it_is_needed(thread, kind, monkeypatch):
    """Of 8 batches the sixth: five steps are made, as if one were drawn at a time."""
    monkeypatch.setattr(ahead, "SECONDS", 60.0)

    def draw(number):
        if number == 5:
            raise kind("no such file")
        return number

    batches = Ahead(thread, draw, range(8))
    assert [batches.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(kind, match="no such file"):
        batches.next()


def test_none_is_drawn_of_none(thread):
    Ahead(thread, pytest.fail, range(0))
    assert thread.submit(int).result() == 0
