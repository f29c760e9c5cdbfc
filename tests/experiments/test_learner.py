"""The reductions of a training step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.learner import first_largest, zero_if_finite

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
