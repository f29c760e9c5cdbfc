"""One layer of a decoder that attends to a source: self-attention, cross-attention, network."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn import MECHANISMS
from attn.biases import Bias
from attn.masks import Causal, Mask
from attn.mechanism import Mechanism
from attn.nn.attention import Attention
from attn.nn.block import Block, network
from attn.nn.config import EncoderConfig
from attn.nn.dropout import dropout
from attn.nn.keys import fold
from attn.nn.mixers.base import MixerLayer
from attn.nn.norm import norm_of


def check_cross(mechanism: Mechanism) -> None:
    """Raise ValueError unless this is a mechanism that can attend from one sequence to another."""
    if not (isinstance(mechanism, Mechanism) and mechanism.crosses):
        names = ", ".join(name for name, kind in MECHANISMS.items() if kind().crosses)
        raise ValueError(
            f"cross: expected a mechanism in which each query looks at the source by itself "
            f"({names}, or another that `crosses`), got {mechanism!r}"
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossState:
    """A layer's state while it decodes: that of its self-attention, and the keys and values of the
    source, projected once."""

    own: Any
    memory: tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]]


class CrossBlock(nnx.Module):
    """Causal self-attention, attention to a source and the position-wise network, each on a
    residual path as in `Block`: the decoder layer of Vaswani et al. 2017 (arXiv:1706.03762)."""

    def __init__(
        self,
        config: EncoderConfig,
        mechanism: Mechanism,
        *,
        cross: Mechanism,
        source_length: int,
        key: Array,
    ):
        check_cross(cross)
        self.pre, self.rate = config.norm_position == "pre", config.dropout
        alone = dataclasses.replace(config, mlp_width=0)
        self.own = Block(alone, mechanism, key=fold(key, "own"))
        self.cross_norm = norm_of(config)(config.width)
        self.cross = Attention(
            config.width,
            num_heads=config.heads,
            mechanism=cross,
            max_length=source_length,
            num_kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qk_norm=config.qk_norm,
            bias=config.bias,
            dtype=jnp.dtype(config.dtype),
            key=fold(key, "cross"),
        )
        self.mlp_norm, self.mlp = network(config, key=fold(key, "mlp"))

    @property
    def attention(self) -> Attention | MixerLayer:
        """The self-attention among the target's tokens."""
        return self.own.attention

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        *,
        source: Float[Array, "*B S W"],
        mask: Mask,
        bias: Bias | None,
        positions: Int[Array, " T"] | None,
        dropout_key: Array | None,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> Float[Array, "*B T W"]:
        """The layer's output; `mask` says which source tokens are visible, `bias` and
        `first_values` are those of the self-attention."""
        context = dict(bias=bias, positions=positions, first_values=first_values)
        x = self.own(x, mask=Causal(), dropout_key=fold(dropout_key, "own"), **context)
        return self._look(x, self.cross.memory(source), mask, dropout_key)

    def prefill(self, x, *, source, mask, **context) -> tuple[CrossState, Float[Array, "*B T W"]]:
        """(state, output) of a prompt, as `Attention.prefill`."""
        memory = self.cross.memory(source)
        own, x = self.own.prefill(x, **context)
        return CrossState(own, memory), self._look(x, memory, mask, None)

    def step(self, state, x, *, mask, **context) -> tuple[CrossState, Float[Array, "*B 1 W"]]:
        """(state, output) of one more token."""
        own, x = self.own.step(state.own, x, **context)
        return CrossState(own, state.memory), self._look(x, state.memory, mask, None)

    def values(self, x, *, mask=None, state=None) -> Float[Array, "*B T K H"]:
        """`Block.values` of the self-attention, to which the source's `mask` does not apply."""
        return self.own.values(x, mask=Causal(), state=None if state is None else state.own)

    def look(self, x, see, *, source, mask, **context):
        """see(the cross-attention, its input for this x, context=, mask=)."""
        x = self.own(x, mask=Causal(), dropout_key=None, **context)
        return see(self.cross, self.cross_norm(x) if self.pre else x, context=source, mask=mask)

    def _look(self, x, memory, mask, key):
        weights_key = fold(key, "weights")
        look = lambda y: self.cross.recall(y, memory, mask=mask, dropout_key=weights_key)
        x = self._residual(x, look, self.cross_norm, fold(key, "cross"))
        if self.mlp is None:
            return x
        return self._residual(x, self.mlp, self.mlp_norm, fold(key, "mlp"))

    def _residual(self, x, f, norm, key):
        x = x + dropout(f(norm(x) if self.pre else x), self.rate, key)
        return x if self.pre else norm(x)
