"""What statistics of patches tell without following a curve: boosted trees on them."""

import dataclasses

import numpy as np
from jaxtyping import Float
from sklearn.ensemble import HistGradientBoostingClassifier

from experiments.tasks.base import Batch
from experiments.tasks.pathfinder import PathfinderPatches

ROUNDS, IMAGES = 200, 10_000


def with_trees(task: PathfinderPatches) -> dict[str, float]:
    """The task's baselines, and the test accuracy of scikit-learn's boosted trees on each patch's
    mean, largest number and deviation, learned from fresh images."""
    train = dataclasses.replace(task, train=0).batch(0, 0, IMAGES)
    test = task.examples("test", np.arange(task.size("test")))
    model = HistGradientBoostingClassifier(max_iter=ROUNDS, early_stopping=False, random_state=0)
    model.fit(statistics(train), train.labels)
    score = float(model.score(statistics(test), test.labels))
    return {**task.baselines(), "boosted trees on patches": score}


def statistics(images: Batch) -> Float[np.ndarray, "B 3*T"]:
    x = images.tokens
    return np.concatenate([x.mean(-1), x.max(-1), x.std(-1)], -1)
