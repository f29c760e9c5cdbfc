"""The digits are scikit-learn's, cut into three splits with each class's share in each."""

import builtins

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments.tasks import DigitPatches, Digits, Inputs
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


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
def test_patches_are_squares_of_the_image(patch):
    task = DigitPatches(patch=patch)
    batch = task.examples("test", np.arange(3))
    pixels = Digits().examples("test", np.arange(3))
    assert np.array_equal(batch.labels, pixels.labels)
    side = 8 // patch
    for image, patches in zip(pixels.tokens.reshape(-1, 8, 8) - 1, batch.tokens, strict=True):
        for t, vector in enumerate(patches):
            i, j = patch * (t // side), patch * (t % side)
            square = image[i : i + patch, j : j + patch]
            np.testing.assert_array_equal(8 * (vector + 1), square.ravel())


def test_patches_must_divide_the_image_and_are_no_ids_to_predict():
    for patch in (0, 3, 16, 2.0, True):
        with pytest.raises(ValueError, match="patch: expected a divisor of 8"):
            DigitPatches(patch=patch)
    with pytest.raises(ValueError, match=r"objective: expected 'label' .*vectors, got 'masked'"):
        Inputs(task=DigitPatches(), objective="masked")


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        module._load()
