"""Layers are compiled with few optimisations: mechanisms are tested with all of them elsewhere."""

import pytest


@pytest.fixture(autouse=True)
def _quickly(compiled_quickly):
    pass
