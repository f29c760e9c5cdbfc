"""Shared by all tests: results are compared at full matrix precision on every backend."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def _full_precision():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def compiled_quickly():
    """Few optimisations, for tests that compile most of their time and are about the arithmetic,
    not about what a compiler makes of it (as those with NaN are)."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
