"""Shared by all tests: results are compared at full matrix precision on every backend."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def _full_precision():
    with jax.default_matmul_precision("highest"):
        yield
