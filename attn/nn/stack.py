"""The depth of an encoder or decoder: blocks in a loop or scan, tied or not, with remat or not."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn.masks import Causal
from attn.nn.block import Block
from attn.nn.config import EncoderConfig
from attn.nn.keys import fold


class Stack(nnx.Module):
    """`layers` blocks in a row. `blocks` holds one each; or, if `tied`, the only one (Lan et al.
    2019, arXiv:1909.11942); or, if `scan`, one whose parameters have a leading axis of layers.

    Every form draws the same parameters and the same dropout for a layer. Arrays that mechanisms
    name in `shared_by_layers` are one parameter for those of one kind and shape, drawn for the
    first of them. `block(config, mechanism, key=key)` makes a layer; the `context` is what all are
    given besides x. If mechanisms take a share of the first layer's values (`blending`), these are
    the values of the first layer that does, projected once more beside it.
    """

    def __init__(
        self, config: EncoderConfig, *, block: Callable[..., nnx.Module] = Block, key: Array
    ):
        self.layers, self.tied, self.scan = config.layers, config.tied, config.scan
        self.remat = config.remat
        mechanisms = config.mechanisms[:1] if config.tied else config.mechanisms
        blocks = [block(config, m, key=fold(key, i)) for i, m in enumerate(mechanisms)]
        shared = {}
        for made, mechanism in zip(blocks, mechanisms):
            for name in mechanism.shared_by_layers:
                learned = made.attention.learned
                # not by the mechanism: its other settings may depend on the layer
                alike = type(mechanism), name, learned[name].shape
                learned[name] = shared.setdefault(alike, learned[name])
        if self.scan and not self.tied:
            graphs, params = zip(*map(nnx.split, blocks))
            blocks = [nnx.merge(graphs[0], jax.tree.map(lambda *x: jnp.stack(x), *params))]
        self.blocks = nnx.List(blocks)

    def __call__(self, x, *, dropout_key, **context) -> Float[Array, "*B T W"]:
        """x after every block."""

        def run(graph, params, x, i, first):
            def block(params, x, context, key):
                return nnx.merge(graph, params)(x, **context, dropout_key=key)

            # inside a scan XLA cannot undo the rematerialisation, so nothing need prevent it
            wrap = functools.partial(jax.checkpoint, prevent_cse=not self.scan)
            block = wrap(block) if self.remat else block
            return block(params, x, {**context, "first_values": first}, fold(dropout_key, i))

        first, values = None, lambda *layer: nnx.merge(*layer).values(x, mask=context["mask"])
        if not self.scan:
            for i, layer in enumerate(self._layers()):
                first = values(*layer) if i == self._handing_on else first
                x = run(*layer, x, i, first)
            return x
        graph, params = nnx.split(self.blocks[0])
        first = None if self._handing_on is None else values(graph, self._opening(params))
        if self.tied:
            step = lambda x, i: (run(graph, params, x, i, first), None)
            return jax.lax.scan(step, x, jnp.arange(self.layers))[0]
        step = lambda x, layer: (run(graph, layer[0], x, layer[1], first), None)
        return jax.lax.scan(step, x, (params, jnp.arange(self.layers)))[0]

    def look(self, x, see, **context) -> tuple:
        """The results of each layer's `look`, without dropout."""
        found, first = [], None
        for i, layer in enumerate(self._layers()):
            block = nnx.merge(*layer)
            first = block.values(x, mask=context["mask"]) if i == self._handing_on else first
            found.append(block.look(x, see, **context, first_values=first))
            x = block(x, **context, first_values=first, dropout_key=None)
        return tuple(found)

    def prefill(self, x, **context):
        """(state of every layer, x after every block) of a prompt."""
        prefill = lambda block, _, x, first: block.prefill(x, **context, first_values=first)
        return self._advance(x, None, prefill)

    def step(self, state, x, **context):
        """(state of every layer, x after every block) of one more token."""
        step = lambda block, s, x, first: block.step(s, x, **context, first_values=first)
        return self._advance(x, state, step)

    def looped(self) -> "Stack":
        """The same layers in a loop, so that each has a state of its own."""
        stack = nnx.merge(*nnx.split(self))
        stack.blocks = nnx.List([nnx.merge(*layer) for layer in self._layers()])
        stack.tied = stack.scan = False
        return stack

    def _advance(self, x, states, run):
        first, values = None, lambda block, state: block.values(x, mask=Causal(), state=state)
        if not self.scan:
            after, layers = [], self._layers()
            if states is not None:
                _check_layers(states, len(layers))
            for i, state in enumerate(states or (None,) * len(layers)):
                block = nnx.merge(*layers[i])
                first = values(block, state) if i == self._handing_on else first
                state, x = run(block, state, x, first)
                after.append(state)
            return tuple(after), x
        if states is not None:
            _check_stacked(states, self.layers)
        graph, params = nnx.split(self.blocks[0])
        if self._handing_on is not None:
            opening = nnx.merge(graph, self._opening(params))
            first = values(opening, jax.tree.map(lambda x: x[0], states))

        def layer(x, given):
            own, state = given
            state, x = run(nnx.merge(graph, params if self.tied else own), state, x, first)
            return x, state

        given = None if self.tied else params, states
        x, states = jax.lax.scan(layer, x, given, length=self.layers)
        return states, x

    @property
    def _handing_on(self) -> int | None:
        """The index of the first layer with `blending`, whose own values are the first values."""
        blends = (i for i, block in enumerate(self.blocks) if block.attention.blend is not None)
        return next(blends, None)

    def _opening(self, params):
        """The parameters of the first layer of a scan."""
        return params if self.tied else jax.tree.map(lambda x: x[0], params)

    def _layers(self):
        """(graph, parameters) of each layer, in whatever form they are held."""
        split = [nnx.split(block) for block in self.blocks]
        if self.tied:
            return split * self.layers
        if self.scan:
            ((graph, params),) = split
            layer = lambda i: jax.tree.map(lambda x: x[i], params)
            return [(graph, layer(i)) for i in range(self.layers)]
        return split


def _check_layers(states, layers: int) -> None:
    """Raise ValueError for the states of another stack: of fewer layers, the rest would not run."""
    got = len(states) if isinstance(states, tuple | list) else type(states).__name__
    if got != layers:
        raise ValueError(f"state: expected those of {layers} layers in a loop, got {got}")


def _check_stacked(states, layers: int) -> None:
    """The same of a scan, whose states are one, with a leading axis of layers."""
    leading = {jnp.shape(x)[:1] for x in jax.tree.leaves(states)}
    if wrong := sorted(leading - {(layers,)}):
        got = list(wrong[-1])  # a number has none
        raise ValueError(f"state: expected arrays of [{layers} layers, ...] in a scan, got {got}")
