"""What counting alone answers: a row's symbols, without their places."""

import numpy as np

from experiments.tasks.drawn import Drawn, whole_split


def most_frequent(task: Drawn, first: int, *, left: bool = False) -> float:
    """How often an answer is the most frequent token before its row's first question, of tokens
    from `first` on; if `left`, an answer that was given is counted off. On validation."""
    batch = whole_split(task, "validation")
    asked, rows = batch.weights > 0, np.arange(len(batch.weights))
    before = np.arange(asked.shape[1]) < asked.argmax(1)[:, None]
    counts = np.zeros((rows.size, task.vocab_size), int)
    np.add.at(counts, (np.nonzero(before)[0], batch.tokens[before]), 1)
    counts[:, :first] = -1  # no answers
    right = 0
    for place in np.flatnonzero(asked.any(0)):
        here, label = asked[:, place], batch.labels[:, place]
        right += (counts.argmax(1) == label)[here].sum()
        if left:
            counts[rows[here], label[here]] -= 1
    return float(right / asked.sum())
