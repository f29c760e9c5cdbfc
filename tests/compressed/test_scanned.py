"""The causal forms that read their slots token by token: `attn/compressed/_scanned.py`."""

import jax
import numpy as np
import pytest

from attn import Causal
from attn.compressed.abc import ABC
from attn.compressed.luna import Luna
from attn.testing import inputs
from attn.testing.cases import widen


@pytest.mark.optimised
@pytest.mark.parametrize("mechanism", [ABC(slots=3, chunk=4), Luna(length=3, chunk=4)])
def test_queries_of_any_size_read_the_slots_that_they_ask_for(mechanism):
    """XLA rounded the scores where it looked for the largest, and not where it subtracted it."""
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    run = jax.jit(lambda q, k, v, learned: mechanism(q, k, v, mask=Causal(), **learned))
    got = run(q * 1e12, k, v, learned)
    with jax.enable_x64(True):
        q, k, v, learned = widen((q * 1e12, k, v, learned))
        want = mechanism.reference(q, k, v, mask=Causal(), **learned)
    np.testing.assert_allclose(got, want, atol=1e-4)
