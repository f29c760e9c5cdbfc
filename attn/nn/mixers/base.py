"""Mixer: the record of a token mixer that is not attention, and the layer that it builds."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._inputs import refuse_rest
from attn._settings import check_count
from attn.biases import Bias
from attn.masks import FULL, Mask
from attn.nn.earlier import shown
from attn.nn.mixers.visible import Visible, visible


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixer(abc.ABC):
    """One token mixer with its settings: hashable, comparable, made of plain values.

    An encoder takes it wherever it takes a `Mechanism`, in one layer or in all. A mask term that is
    not in `honours`, and any bias, is refused with NotImplementedError.
    """

    honours: ClassVar[tuple[type[Mask], ...]] = ()
    # what an encoder asks of the heads of a mechanism, of which a mixer has none
    requires: ClassVar[tuple[type[Mask], ...]] = ()
    parts: ClassVar[int] = 1
    shared_qk: ClassVar[bool] = False
    shared_by_layers: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def layer(self, width: int, *, dtype, key: Array) -> "MixerLayer":
        """What a block has in the place of attention, drawn from `key`."""

    @classmethod
    @abc.abstractmethod
    def examples(cls) -> tuple["Mixer", ...]:
        """Small settings that together reach every branch."""

    @property
    def past_only(self) -> bool:
        """Whether a token sees none after it, even without `Causal`."""
        return False

    @property
    def name(self) -> str:
        """For messages; `MIXERS` has the key that configs use."""
        return type(self).__name__


class MixerLayer(nnx.Module):
    """A mixer with its parameters, called as `attn.nn.Attention` is.

    A subclass says how the tokens of a row `mix`, and, if it decodes, what it remembers of no
    tokens (`empty`) and how it goes on from there (`advance`, by any number of tokens).
    """

    blend = None  # there are no values that a layer could take from another

    def __init__(self, mixer: Mixer, width: int, dtype):
        self.mixer, self.width, self.dtype = mixer, width, jnp.dtype(dtype)

    def mix(self, x: Float[Array, "*B T W"], seen: Visible) -> Float[Array, "*B T W"]:
        """The output for x in which hidden tokens are 0."""
        raise NotImplementedError

    def empty(self, batch: tuple[int, ...]) -> Any:
        raise NotImplementedError(f"{self.mixer.name} does not decode token by token")

    def advance(self, state: Any, x: Float[Array, "*B T W"]) -> tuple[Any, Float[Array, "*B T W"]]:
        raise NotImplementedError(f"{self.mixer.name} does not decode token by token")

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        *,
        mask: Mask = FULL,
        bias: Bias | Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*B T W"]:
        """The layer's output in `dtype`. There is nothing that `positions` could rotate and no
        weight to drop by `dropout_key`: both are for the layers that attend.

        Raises ValueError for shapes that do not fit, NotImplementedError for what it cannot honour.
        """
        x = self._taken(x)
        seen = visible(self.mixer.name, self.mixer.honours, x, mask, bias)
        return seen.answered(self.mix(shown(x, seen.padding), seen))

    def prefill(
        self,
        x: Float[Array, "*B T W"],
        *,
        bias: Bias | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        max_length: int,
    ) -> tuple[Any, Float[Array, "*B T W"]]:
        """(state, output) of the tokens of a prompt, as with `mask=Causal()`. A state has one size
        whatever `max_length`, and longer prompts are a ValueError, as in layers that attend. Raises
        NotImplementedError if the mixer does not decode, and for a bias."""
        refuse_rest(self.mixer.name, FULL, bias, self.mixer.honours)
        empty, x = self.empty(x.shape[:-2]), self._taken(x)
        check_count("max_length", max_length, least=x.shape[-2])
        return self.advance(empty, x)

    def step(
        self,
        state: Any,
        x: Float[Array, "*B 1 W"],
        *,
        bias: Bias | None = None,
        positions: Int[Array, "*#B 1"] | None = None,
    ) -> tuple[Any, Float[Array, "*B 1 W"]]:
        """One token after those of `state`: its output equals that of the whole at once.

        Raises TypeError for what is no state, ValueError for one of another batch.
        """
        refuse_rest(self.mixer.name, FULL, bias, self.mixer.honours)
        x = self._taken(x)
        self._check_state(state, x.shape[:-2])
        return self.advance(state, x)

    def _check_state(self, state, batch: tuple[int, ...]) -> None:
        """Raise unless it is one that tokens of this batch may follow: another would broadcast."""
        want = jax.eval_shape(lambda: self.empty(batch))
        if jax.tree.structure(state) != jax.tree.structure(want):
            raise TypeError(f"state: expected that of `prefill`, got {type(state).__name__}")
        shapes = lambda tree: [list(jnp.shape(y)) for y in jax.tree.leaves(tree)]
        if shapes(state) != shapes(want):
            raise ValueError(
                f"state: expected one of {shapes(want)} to go with x, got {shapes(state)}"
            )

    def _taken(self, x) -> Float[Array, "*B T W"]:
        """x in `dtype`. Raises ValueError unless it is tokens of the layer's width."""
        if x.ndim < 2 or x.shape[-1] != self.width:
            raise ValueError(f"x: expected ['...', 'T', {self.width}], got {list(x.shape)}")
        return x.astype(self.dtype)

    def weights(self, x, *, mask: Mask = FULL, bias=None, positions=None):
        raise NotImplementedError(f"{self.mixer.name} has no T x S matrix to show")
