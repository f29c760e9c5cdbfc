"""A query under Causal(offset) stands at token i + offset: the last queries of a text, with all its
keys, get what they got in the whole, as a prompt that comes in pieces asks for.

Not so where a variant is a matrix of pairs (i, j), query by number and key by number, nor where
what a query sees is made of other queries (poolingformer).
"""

import jax
import pytest
from tiers import FEW

from attn import MECHANISMS, Causal
from attn.testing import inputs
from attn.testing.contract import assert_close

T, AT = 19, 12
PAIRS = {"window", "global_window", "bigbird", "strided", "fixed", "sinks", "axial", "local_2d"}
PAIRS |= {"dilated", "logsparse", "block_sparse", "luong", "synthesizer"}
PAIRS |= {"poolingformer"}
EXAMPLES = [
    pytest.param(mechanism, marks=[pytest.mark.slow] * (number > 0 or name not in FEW))
    for name in sorted(MECHANISMS.keys() - PAIRS)
    for number, mechanism in enumerate(MECHANISMS[name].examples())
    if Causal in mechanism.honours  # the others refuse it, by law 2
]


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_the_last_queries_get_what_they_got_in_the_whole(mechanism):
    q, k, v, learned = inputs(mechanism, T=T, S=T)
    attend = jax.jit(lambda q, mask: mechanism(q, k, v, mask=mask, **learned))
    whole, last = attend(q, Causal()), attend(q[:, AT:], Causal(AT))
    assert_close(last, whole[:, AT:], dtype=q.dtype, room=mechanism.room, what="the last queries")
