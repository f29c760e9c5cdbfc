"""One layer of any mixer as a function of arrays that have an entry for each token."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attn import FULL, Causal, Mask, Mechanism
from attn.nn import Mixer
from experiments.measure import cost


class Layer(NamedTuple):
    """`call(tokens, learned)` and the same `by definition` are [1, T, ...], as each array of tokens
    is; `draw(seed)` gives both, tokens that are drawn and learned arrays as they start."""

    call: Callable
    by_definition: Callable
    draw: Callable[[int], tuple[tuple, dict]]


def mask_of(mixer: Mechanism | Mixer, causal: bool) -> Mask:
    """`Causal` where the mixer requires it or, if asked for, can."""
    return Causal() if Causal in (mixer.honours if causal else mixer.requires) else FULL


def is_causal(mixer: Mechanism | Mixer, causal: bool) -> bool:
    """Whether a token sees none after it."""
    return isinstance(mask_of(mixer, causal), Causal) or getattr(mixer, "past_only", False)


def layer(mixer: Mechanism | Mixer, shape: cost.Shape, causal: bool) -> Layer:
    """Of a mechanism what stands between the projections of its layer, of q, k, v and gates; of
    another mixer its layer, of x as wide as all heads."""
    mask = mask_of(mixer, causal)
    if not isinstance(mixer, Mechanism):
        width = shape.N * shape.H
        module = mixer.layer(width, dtype=jnp.float32, key=jax.random.key(0))
        call = lambda tokens, learned: module(*tokens, mask=mask)
        draw = lambda seed: ((shape.qkvg(seed)[0].reshape(shape.B, shape.T, width),), {})
        return Layer(call, call, draw)
    heads = {"num_heads": shape.N, "num_kv_heads": shape.K, "head_dim": shape.H}
    names = mixer.gate_shapes(**heads).keys()

    def draw(seed):
        arrays = cost.attention(mixer, shape, mask)[1]
        gates = {name: arrays.pop(name) for name in names}
        return (*shape.qkvg(seed)[:3], gates), arrays

    def form(function):
        return lambda tokens, learned: function(*tokens[:3], mask=mask, **tokens[3], **learned)

    return Layer(form(mixer), form(mixer.reference), draw)
