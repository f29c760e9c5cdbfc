"""Called outside of jit, a mechanism compiles some programs the first time, not the 900 that take
half a minute, and nothing after that: a loop over a function that each call makes anew would be
another loop every time, seconds for milliseconds."""

import dataclasses

import jax
import pytest
from tiers import ENGINES, in_ci

from attn import MECHANISMS, Mechanism
from attn.testing import inputs
from attn.testing.cases import base_mask

T = 40
FEW = 200  # of programs; what is outside of an engine makes one for each operation and shape
BY_ROWS = ("additive", "luong", "sigmoid", "relu", "synthesizer")  # several blocks of them here
SOON = ("linear", "delta_net")
# what is not in an engine of theirs
OWN = ("additive", "differential", "talking_heads", "topk", "sinkhorn", "routing", "poolingformer")
LATER = in_ci([n for n in MECHANISMS if n not in SOON], (*ENGINES, *OWN))


@pytest.fixture
def compiled():
    """The programs that were compiled so far."""
    found = []

    def hear(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    yield found
    jax.monitoring.unregister_event_duration_listener(hear)


def calls(mechanism):
    """All at once, its gradient, and where it decodes a prompt and one token more."""
    q, k, v, arrays = inputs(mechanism, T=T, S=T)
    call = lambda q: mechanism(q, k, v, mask=base_mask(mechanism), **arrays)
    yield lambda: call(q)
    yield lambda: jax.grad(lambda q: call(q).sum())(q)
    if type(mechanism).step is Mechanism.step:
        return
    gates = mechanism.gate_shapes(num_heads=4, num_kv_heads=2, head_dim=8)
    learned = {name: x for name, x in arrays.items() if name not in gates}

    def tokens(*cut):
        x = [x[:, slice(*cut)] for x in (q, k, v)]
        return x, {name: arrays[name][:, slice(*cut)] for name in gates} | learned

    (x, given), (one, given_one) = tokens(0, 9), tokens(9, 10)
    prompt = lambda: mechanism.prefill(*x, max_length=T, **given)
    yield prompt
    state = prompt()[0]
    yield lambda: mechanism.step(state, *one, **given_one)


@pytest.mark.parametrize("name", [*SOON, *LATER])
def test_a_second_call_compiles_nothing(name, compiled):
    mechanism = MECHANISMS[name].examples()[0]
    if name in BY_ROWS:
        mechanism = dataclasses.replace(mechanism, block=8)
    for call in calls(mechanism):
        heard = len(compiled)
        call()
        first = len(compiled) - heard
        assert compiled, "the first call compiled nothing: not heard"
        assert first < FEW
        call()
        assert len(compiled) == heard + first
