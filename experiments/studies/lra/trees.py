"""What is told without following a curve from end to end: boosted trees on statistics of images."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage
from sklearn.ensemble import HistGradientBoostingClassifier

from experiments.tasks.base import Batch
from experiments.tasks.patches import joined
from experiments.tasks.pathfinder import PathfinderPatches

ROUNDS, IMAGES = 200, 10_000
EIGHT = np.ones((3, 3))  # neighbours of a pixel


def with_trees(task: PathfinderPatches) -> dict[str, float]:
    """The task's baselines, and the test accuracy of scikit-learn's boosted trees, learned from
    fresh images: on each patch's mean, largest number and deviation, and on how large the connected
    pieces of ink are, wherever the dots may be."""
    train = dataclasses.replace(task, train=0).batch(0, 0, IMAGES)
    test = task.examples("test", np.arange(task.size("test")))

    def score(of) -> float:
        model = HistGradientBoostingClassifier(
            max_iter=ROUNDS, early_stopping=False, random_state=0
        )
        return float(model.fit(of(train), train.labels).score(of(test), test.labels))

    pieces = lambda images: np.stack([sizes(x) for x in pixels(images, task.patch)])
    return {
        **task.baselines(),
        "boosted trees on patches": score(statistics),
        "on sizes of connected ink": score(pieces),
    }


def statistics(images: Batch) -> Float[np.ndarray, "B 3*T"]:
    x = images.tokens
    return np.concatenate([x.mean(-1), x.max(-1), x.std(-1)], -1)


def pixels(images: Batch, patch: int) -> Float[np.ndarray, "B H W"]:
    """The images that were cut into squares, in [0, 1]."""
    return joined(images.tokens, patch) / 2 + 0.5


def sizes(image: Float[np.ndarray, "H W"]) -> Float[np.ndarray, "20"]:
    """How many connected pieces there are and the sizes of the largest four, in pixels: of faint
    and of strong ink, thickened to close the gaps between dashes, and of faint ink as it is."""
    found = []
    for ink in _inks(image):
        labels, count = ndimage.label(ink)
        largest = np.sort(np.bincount(labels.ravel(), minlength=5)[1:])[::-1][:4]
        found += [count, *largest]
    return np.array(found, np.float32)


def _inks(image: Float[np.ndarray, "H W"]) -> Iterator[Bool[np.ndarray, "H W"]]:
    yield ndimage.binary_dilation(image > 0.1)
    yield ndimage.binary_dilation(image > 0.3)
    yield ndimage.binary_dilation(image > 0.1, EIGHT)
    yield image > 0.1
