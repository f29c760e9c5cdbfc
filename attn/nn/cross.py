"""One layer of a decoder that looks at a source: self-attention, cross-attention, network."""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn.biases import Bias
from attn.compressed.abc import ABC
from attn.compressed.linformer import Linformer
from attn.compressed.luna import Luna
from attn.compressed.pooled import Pooled
from attn.compressed.set import Set
from attn.dense.additive import Additive
from attn.dense.differential import Differential
from attn.dense.dot_product import Softmax
from attn.dense.luong import Luong
from attn.dense.relu import Relu
from attn.dense.sigmoid import Sigmoid
from attn.dense.talking_heads import TalkingHeads
from attn.linearized.efficient import Efficient
from attn.linearized.hedgehog import Hedgehog
from attn.linearized.linear import Linear
from attn.linearized.performer import Performer
from attn.masks import Causal, Mask
from attn.mechanism import Mechanism
from attn.nn.attention import Attention
from attn.nn.block import Block
from attn.nn.config import EncoderConfig
from attn.nn.dropout import dropout
from attn.nn.keys import fold
from attn.nn.mlp import Mlp
from attn.nn.norm import norm_of
from attn.sparse.topk import TopK

# those where the output of a query depends on that query and the keys alone: not on where it
# stands, nor on other queries, which would be tokens that are not written yet
CROSS = (
    Softmax,
    Additive,
    Luong,
    Sigmoid,
    Relu,
    Differential,
    TalkingHeads,
    Linear,
    Performer,
    Hedgehog,
    Efficient,
    TopK,
    Linformer,
    Pooled,
    Set,
    Luna,
    ABC,
)


def check_cross(mechanism: Mechanism) -> None:
    """Raise ValueError for a mechanism that cannot attend from one sequence to another."""
    near = getattr(mechanism, "local", None) is not None
    if type(mechanism) not in CROSS or near:
        names = ", ".join(kind.__name__ for kind in CROSS)
        raise ValueError(
            f"cross: expected a mechanism in which each query looks at the source by itself "
            f"({names}; Luong with local=None), got {mechanism!r}"
        )


class CrossBlock(nnx.Module):
    """Causal self-attention, attention to a source, the position-wise network, each on a residual
    path as in `Block`: the decoder's layer of Vaswani et al. 2017 (arXiv:1706.03762)."""

    def __init__(
        self,
        config: EncoderConfig,
        mechanism: Mechanism,
        cross: Mechanism,
        *,
        source_length: int,
        key: Array,
    ):
        check_cross(cross)
        norm, dtype = norm_of(config), jnp.dtype(config.dtype)
        self.pre, self.rate = config.norm_position == "pre", config.dropout
        alone = dataclasses.replace(config, mlp_width=0)
        self.own = Block(alone, mechanism, key=fold(key, "own"))
        self.cross_norm = norm(config.width)
        self.cross = Attention(
            config.width,
            num_heads=config.heads,
            mechanism=cross,
            max_length=source_length,
            num_kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qk_norm=config.qk_norm,
            bias=config.bias,
            dtype=dtype,
            key=fold(key, "cross"),
        )
        if not config.mlp_width:
            self.mlp_norm = self.mlp = None
            return
        self.mlp_norm = norm(config.width)
        self.mlp = Mlp(
            config.width,
            config.mlp_width,
            activation=config.activation,
            dtype=dtype,
            key=fold(key, "mlp"),
        )

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        memory: tuple[Array, Array],
        *,
        mask: Mask,
        bias: Bias | None,
        positions: Int[Array, " T"] | None,
        dropout_key: Array | None,
    ) -> Float[Array, "*B T W"]:
        """`memory` is that of `self.cross.memory(source)`, `mask` says which of it is seen."""
        key = fold(dropout_key, "own")
        x = self.own(x, mask=Causal(), bias=bias, positions=positions, dropout_key=key)
        return self._look(x, memory, mask, dropout_key)

    def prefill(self, x, memory, *, mask, positions, max_length):
        """(state of the self-attention, output) of a prompt, as `Attention.prefill`."""
        state, x = self.own.prefill(x, positions=positions, max_length=max_length)
        return state, self._look(x, memory, mask, None)

    def step(self, state, x, memory, *, mask, positions):
        """(state, output) of one token more."""
        state, x = self.own.step(state, x, positions=positions)
        return state, self._look(x, memory, mask, None)

    def _look(self, x, memory, mask, key):
        weights_key = fold(key, "weights")
        look = lambda y: self.cross.recall(y, memory, mask=mask, dropout_key=weights_key)
        x = self._residual(x, look, self.cross_norm, fold(key, "cross"))
        return (
            x if self.mlp is None else self._residual(x, self.mlp, self.mlp_norm, fold(key, "mlp"))
        )

    def _residual(self, x, f, norm, key):
        x = x + dropout(f(norm(x) if self.pre else x), self.rate, key)
        return x if self.pre else norm(x)

    def weights(self, x, memory, *, mask, positions) -> Float[Array, "*B N T S"]:
        """What each head of the cross-attention takes from the source, for the same input."""
        x = self.own(x, mask=Causal(), bias=None, positions=positions, dropout_key=None)
        return self.cross.recalled(self.cross_norm(x) if self.pre else x, memory, mask=mask)
