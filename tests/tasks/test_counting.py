"""What counting answers, against a count row by row."""

from collections import Counter

import pytest

from experiments.tasks import TASKS
from experiments.tasks.counting import most_frequent
from experiments.tasks.drawn import whole_split

SMALL = {
    "copy": ({"vocab_size": 5, "symbols": 6}, 2, True),
    "selective_copy": ({"vocab_size": 6, "symbols": 4, "length": 12}, 3, True),
    "induction": ({"vocab_size": 6, "length": 9, "lengths": (5, 9)}, 2, False),
    "needle": ({"vocab_size": 8, "length": 12}, 4, False),
}


@pytest.mark.parametrize("name", SMALL)
def test_counting_is_that_of_a_loop(name):
    settings, first, left = SMALL[name]
    task = TASKS[name](**settings, validation=50)
    batch, right, asked = whole_split(task, "validation"), 0, 0
    for tokens, labels, weights in zip(batch.tokens, batch.labels, batch.weights):
        places = [i for i, w in enumerate(weights) if w > 0]
        count = Counter(int(t) for t in tokens[: places[0]] if t >= first)
        for i in places:
            guess = min(count, key=lambda t: (-count[t], t)) if count else first
            right, asked = right + (guess == labels[i]), asked + 1
            if left:
                count[int(labels[i])] -= 1
    assert most_frequent(task, first, left=left) == right / asked
    assert right / asked in task.baselines().values()
