"""One layer of an encoder: a token mixer, then the position-wise network, on residual paths."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn.biases import Bias
from attn.masks import Mask
from attn.mechanism import Mechanism
from attn.nn.attention import Attention
from attn.nn.config import EncoderConfig
from attn.nn.dropout import dropout
from attn.nn.keys import fold
from attn.nn.mixers.base import Mixer, MixerLayer
from attn.nn.mlp import Mlp
from attn.nn.norm import norm_of


class Block(nnx.Module):
    """x + f(norm(x)) if `pre` (Xiong et al. 2020, arXiv:2002.04745), norm(x + f(x)) if `post`
    (Vaswani et al. 2017); dropout on each f(x), and on the weights of a mechanism that has a rate.
    `mlp_width` 0 leaves the network out. `attention` is attention around a `Mechanism`, or the
    layer of a `Mixer`."""

    def __init__(self, config: EncoderConfig, mechanism: Mechanism | Mixer, *, key: Array):
        self.pre, self.rate = config.norm_position == "pre", config.dropout
        self.attention_norm = norm_of(config)(config.width)
        self.attention = token_mixer(config, mechanism, key=fold(key, "attention"))
        self.mlp_norm, self.mlp = network(config, key=fold(key, "mlp"))

    def __call__(
        self,
        x: Float[Array, "*B T W"],
        *,
        mask: Mask,
        bias: Bias | None,
        positions: Int[Array, " T"] | None,
        dropout_key: Array | None,
        first_values: Float[Array, "*B T K H"] | None = None,
    ) -> Float[Array, "*B T W"]:
        context = self._taking(first_values, mask=mask, bias=bias, positions=positions)
        context["dropout_key"] = fold(dropout_key, "weights")
        attend = lambda y: self.attention(y, **context)
        x = self._residual(x, attend, self.attention_norm, fold(dropout_key, "attention"))
        if self.mlp is None:
            return x
        return self._residual(x, self.mlp, self.mlp_norm, fold(dropout_key, "mlp"))

    def prefill(self, x, *, first_values=None, **context):
        """(state, output) of a prompt, as `Attention.prefill`."""
        context = self._taking(first_values, **context)
        return self._advance(x, lambda y: self.attention.prefill(y, **context))

    def step(self, state, x, *, first_values=None, **context):
        """(state, output) of one more token, as `Attention.step`."""
        context = self._taking(first_values, **context)
        return self._advance(x, lambda y: self.attention.step(state, y, **context))

    def values(self, x, **context) -> Float[Array, "*B T K H"]:
        """The `first_values` for deeper layers, as `Attention.values`."""
        return self.attention.values(self.attention_norm(x) if self.pre else x, **context)

    def _taking(self, first_values, **context) -> dict:
        """The attention's arguments, with the first layer's values if it takes a share of them."""
        if self.attention.blend is None:
            return context
        return {**context, "first_values": first_values}

    def _advance(self, x, attend):
        state, y = attend(self.attention_norm(x) if self.pre else x)
        x = self._add(x, y, self.attention_norm, None)
        return state, x if self.mlp is None else self._residual(x, self.mlp, self.mlp_norm, None)

    def _residual(self, x, f, norm, key):
        return self._add(x, f(norm(x) if self.pre else x), norm, key)

    def _add(self, x, y, norm, key):
        x = x + dropout(y, self.rate, key)
        return x if self.pre else norm(x)

    def look(self, x, see, *, first_values=None, **context):
        """see(the token mixer, its input for this x, **context)."""
        context = self._taking(first_values, **context)
        return see(self.attention, self.attention_norm(x) if self.pre else x, **context)


def network(config: EncoderConfig, *, key: Array) -> tuple[nnx.Module | None, Mlp | None]:
    """(norm, position-wise network), or (None, None) if the config has no network."""
    if not config.mlp_width:
        return None, None
    dtype, activation = jnp.dtype(config.dtype), config.activation
    mlp = Mlp(config.width, config.mlp_width, activation=activation, dtype=dtype, key=key)
    return norm_of(config)(config.width), mlp


def token_mixer(
    config: EncoderConfig, mechanism: Mechanism | Mixer, *, key: Array
) -> Attention | MixerLayer:
    """The token mixer of a block: attention around a mechanism, or a mixer's own layer."""
    if isinstance(mechanism, Mixer):
        return mechanism.layer(config.width, dtype=jnp.dtype(config.dtype), key=key)
    return Attention(
        config.width,
        num_heads=config.heads,
        mechanism=mechanism,
        max_length=config.positions_held,
        num_kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        qk_norm=config.qk_norm,
        bias=config.bias,
        rotary=config.rotary,
        xpos=config.positions == "xpos",
        dtype=jnp.dtype(config.dtype),
        key=key,
    )
