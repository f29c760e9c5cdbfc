"""Bytes of state are those that a decoder of the same model holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import FEW, at_once
from tiny_experiment import tiny

from attn import MECHANISMS, Causal, Mechanism
from attn.nn import MIXERS, Decoder
from experiments.config import mechanism
from experiments.quantities import state_bytes


def of(*attention, **model):
    layers = len(attention)
    return tiny(model={"attention": list(attention), "layers": layers, "dropout": 0.0, **model})


def decoded(experiment) -> int | None:
    """Of `Decoder.prefill`, but for the number of tokens; None for what it refuses."""
    config = experiment.model.encoder(**experiment.posed.sizes, head="token")
    decoder = Decoder(config, key=jax.random.key(0))
    prompt = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    try:
        state, _ = jax.eval_shape(decoder.prefill, prompt)
    except (NotImplementedError, ValueError):
        return None
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.layers))


@pytest.mark.parametrize("name", at_once([*MECHANISMS, *MIXERS], (*FEW, *MIXERS)))
def test_a_state_is_that_of_a_decoder(name):
    """That of the mechanism alone left out short convolutions and token shifts."""
    kind = MECHANISMS.get(name)
    given = {"name": name, "length": 12} if hasattr(kind, "length") else mechanism(name)
    causal = kind is not None and Causal in (*kind().honours, *kind().requires)
    experiment = of(given, given, causal=causal)
    found = state_bytes(experiment)
    assert found == decoded(experiment)
    steps = kind.step is not Mechanism.step if kind else name != "fnet"
    # of those the sizes of whose patterns are the length's it is not known how to go on
    assert (found is not None) == (steps and name not in ("strided", "fixed", "axial", "local_2d"))


def test_a_state_is_a_cache_for_softmax_and_does_not_grow_for_linear():
    longer = {"task": {"length": 24}}
    grown = lambda name: [
        state_bytes(tiny(model={"attention": name, "heads": 1}, **more)) for more in ({}, longer)
    ]
    cache, cache_of_longer = grown("softmax")
    # keys and values in float32, for each two a number whether they are finite, and a length
    assert cache == 4 * 12 * (8 + 8 + 1) + 4
    assert cache_of_longer == 4 * 24 * (8 + 8 + 1) + 4
    assert np.ptp(grown("linear")) == 0


def test_convolutions_and_shifts_are_counted():
    state = lambda name: state_bytes(of(name, heads=1, positions="none"))
    q_k_and_v_of_three_tokens, a_token = 3 * 3 * 8 * 4, 8 * 4
    assert state("delta_net") - state("linear") == q_k_and_v_of_three_tokens
    assert state("rwkv6") - state("linear") == a_token


def test_tied_layers_and_a_scan_keep_as_much_as_a_loop():
    loop, tied, scan = (
        state_bytes(of("gla", "gla", **more)) for more in ({}, {"tied": True}, {"scan": True})
    )
    assert loop == tied == scan > 0
