"""Tokens to vectors: a learned table or map, a CLS vector in front, positions added, a norm."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Shaped

from attn._axes import aligned
from attn._integers import check_fits
from attn.nn.config import EncoderConfig
from attn.nn.dropout import dropout
from attn.nn.keys import fold
from attn.nn.norm import norm_of
from attn.positions import sinusoidal, sinusoidal_grid


def look_up(table: Float[Array, "V W"], tokens: Int[Array, "*B"]) -> Float[Array, "*B W"]:
    """The rows of the table, NaN for an id outside of it, so that a wrong id shows. Raises
    ValueError for an id that does not fit in 32 bits."""
    check_fits("tokens", tokens)
    tokens = jnp.asarray(tokens, jnp.int32)
    tokens = jnp.where(tokens < 0, len(table), tokens)
    return table.at[tokens].get(mode="fill", out_sharding=_place(tokens))


def _place(x: Shaped[Array, "*B"]) -> NamedSharding | None:
    """Where vectors lie, one for each element of x, which jax asks for on `Explicit` mesh axes."""
    lies = jax.typeof(x).sharding
    return NamedSharding(lies.mesh, P(*lies.spec, None)) if lies.mesh.explicit_axes else None


class Embedding(nnx.Module):
    """table[token] + position, normalised if `embedding_norm`; token @ table + bias for tokens that
    are vectors, such as patches (Dosovitskiy et al. 2020, arXiv:2010.11929). With `pooling="cls"`
    a learned vector is put at index 0, so token t stands at position t + 1 (Devlin et al. 2018,
    arXiv:1810.04805)."""

    def __init__(self, config: EncoderConfig, *, key: Array):
        # unit variance, as the sinusoids have about: neither drowns the other
        draw = lambda name, *shape: nnx.Param(
            jax.random.normal(fold(key, name), (*shape, config.width), jnp.float32)
        )
        if config.token_width is None:
            self.tokens, self.bias = draw("tokens", config.vocab_size), None
        else:
            scale = config.token_width**-0.5
            self.tokens = nnx.Param(scale * draw("tokens", config.token_width)[...])
            self.bias = nnx.Param(jnp.zeros(config.width, jnp.float32))
        self.cls = draw("cls") if config.pooling == "cls" else None
        learned = config.positions == "learned"
        self.positions = draw("positions", config.positions_held) if learned else None
        self.norm = norm_of(config)(config.width) if config.embedding_norm else None
        self.config = config
        self.rate, self.dtype = config.dropout, jnp.dtype(config.dtype)

    def __call__(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        *,
        dropout_key: Array | None,
        start: Int[Array, ""] | None = None,
    ) -> Float[Array, "*B L W"]:
        """The vectors; L is T, or T + 1 with CLS, and the first stands at position `start`, or 0. A
        token outside the vocabulary gives NaN."""
        table = self.tokens[...]
        if self.bias is None:
            x = look_up(table, tokens)
        else:
            x = jnp.add(*aligned(jnp.asarray(tokens, jnp.float32) @ table, self.bias[...]))
        if self.cls is not None:
            shape = (*x.shape[:-2], 1, x.shape[-1])
            cls = jnp.broadcast_to(self.cls[...], shape, out_sharding=_place(x[..., :1, 0]))
            x = jnp.concatenate([cls, x], axis=-2)
        L = x.shape[-2]
        at = lambda x: x[:L] if start is None else jax.lax.dynamic_slice_in_dim(x, start, L)
        if self.positions is not None:
            x = jnp.add(*aligned(x, at(self.positions[...])))
        if self.config.positions in ("sinusoidal", "grid"):
            fixed = self._fixed(L if start is None else self.config.positions_held)
            x = jnp.add(*aligned(x, at(jnp.asarray(fixed))))
        x = x if self.norm is None else self.norm(x)
        return dropout(x.astype(self.dtype), self.rate, dropout_key)

    def _fixed(self, length: int) -> Float[np.ndarray, "length W"]:
        width, columns = self.config.width, self.config.columns
        if self.config.positions == "sinusoidal":
            return sinusoidal(length, width)
        before = int(self.cls is not None)  # CLS has no place in the image
        grid = sinusoidal_grid(length - before, columns, width)
        return np.concatenate([np.zeros((before, width), np.float32), grid])
