"""Maps of vectors, computed on one matrix of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.nn.rows import of_rows


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (2, 4, 5, 3), (2, 0, 3)])
def test_each_vector_is_mapped(shape: tuple[int, ...]):
    x = jax.random.normal(jax.random.key(0), shape)
    kernel = jax.random.normal(jax.random.key(1), (3, 7))
    mapped = of_rows(lambda x: x @ kernel, x)
    np.testing.assert_allclose(mapped, jnp.einsum("...i,io->...o", x, kernel), rtol=1e-6)


def test_the_map_meets_a_matrix():
    seen = []
    of_rows(lambda x: seen.append(x.shape) or x, jnp.zeros((2, 4, 3)))
    assert seen == [(8, 3)]
