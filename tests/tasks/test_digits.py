"""The digits are scikit-learn's, cut into three splits with each class's share in each."""

import builtins

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments.tasks import Digits
from experiments.tasks import digits as module

SPLITS = ("train", "validation", "test")


def test_the_splits_are_the_whole_data_set():
    task = Digits()
    assert [task.size(split) for split in SPLITS] == [1257, 270, 270]
    parts = [task.examples(split, np.arange(task.size(split))) for split in SPLITS]
    tokens = np.concatenate([part.tokens - 1 for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    ours = sorted((*row, label) for row, label in zip(tokens.tolist(), labels.tolist()))
    data = load_digits()
    rows = data.data.astype(int).tolist()
    assert ours == sorted((*row, label) for row, label in zip(rows, data.target.tolist()))


@pytest.mark.parametrize("split", SPLITS)
def test_every_class_has_its_share(split):
    task = Digits()
    labels = task.examples(split, np.arange(task.size(split))).labels
    expected = np.bincount(load_digits().target) * task.size(split) / 1797
    assert np.abs(np.bincount(labels) - expected).max() <= 1.5


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        module._load()
