"""The reductions of a training step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_experiment import tiny

from experiments.learner import Learner, Shape, first_largest, zero_if_finite
from experiments.tasks import RecallMixed

INF, NAN = jnp.inf, jnp.nan


@pytest.mark.parametrize(
    "scores",
    [[[0.5, 2, 1]], [[1, 3, 3, 2]], [[0, 0, 0]], [[-INF, -INF]], [[-INF, -1, INF]], [[4]]],
    ids=str,
)
def test_the_first_of_the_largest_is_chosen(scores: list):
    scores = jnp.asarray(scores, jnp.float32)
    np.testing.assert_array_equal(jax.jit(first_largest)(scores), scores.argmax(-1))


def test_a_row_with_nan_chooses_no_class():
    assert first_largest(jnp.asarray([[0.0, NAN, 1.0]])) == 3


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("shape", [(), (7,), (130, 67)])
def test_what_is_not_finite_is_found(value: float, shape: tuple[int, ...]):
    largest = jnp.finfo(jnp.float32).max
    finite = jnp.full(shape, largest, jnp.float32)  # whose sum, and squares, are not
    assert jax.jit(zero_if_finite)(finite) == 0
    spoilt = finite.ravel().at[-1].set(value).reshape(shape)
    assert jnp.isnan(jax.jit(zero_if_finite)(spoilt))


def test_a_training_batch_unlike_the_held_out_rows_is_named():
    """Its padding would be attended to, and its further labels lost."""
    batch = tiny().task.batch(0, 0, 8)
    padded = dataclasses.replace(batch, lengths=batch.lengths - 1)
    with pytest.raises(ValueError, match=r"lengths: expected rows without padding, .*`padded`"):
        Shape(full=True, asked=2).check(padded)
    with pytest.raises(ValueError, match=r"weights: expected at most 1 labels .*`asked`.*, got 2"):
        Shape(full=False, asked=1).check(padded)


def test_training_rows_may_be_shorter_than_all_that_are_held_out():
    sizes = dict(lengths=(16, 32), pairs=(2, 2), shares=(1, 1), held_lengths=(32,), held_pairs=(2,))
    task = RecallMixed(vocab_size=64, validation=8, test=8, **sizes)
    batch = task.batch(0, 0, 8)
    assert set(batch.lengths) == {16, 32}
    assert Shape.of(task, 8).check(batch) is batch


@pytest.mark.slow
def test_places_that_are_filled_up_add_nothing():
    """Some rows have one label, others two: those with one are scored at two places too."""
    learner = Learner(tiny())
    task, params = learner.experiment.task, learner.init().params
    batch = task.batch(0, 0, 8)
    assert set(batch.weights.sum(1)) == {1, 2}
    few = jax.jit(learner.eval_step)(params, batch)
    learner.shape = dataclasses.replace(learner.shape, asked=task.length)  # all are scored
    for name, all_scored in jax.jit(lambda *x: learner.eval_step(*x))(params, batch).items():
        np.testing.assert_allclose(few[name], all_scored, rtol=1e-5)
