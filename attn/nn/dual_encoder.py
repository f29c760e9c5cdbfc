"""Two sequences read separately by one encoder, and the scores of the pair."""

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats, check_width
from attn.masks import FULL, Mask
from attn.nn.config import EncoderConfig, check_config
from attn.nn.encoder import Encoder
from attn.nn.head import pair, pool
from attn.nn.inputs import alone, prepare


class DualEncoder(nnx.Module):
    """An `Encoder` with head "dual", for retrieval (Tay et al. 2020, arXiv:2011.04006).

    A call scores pairs; `vectors` and `score` are its two halves, so that a sequence in many pairs
    is read once. It has the parameters of `Encoder(config, key=key)`. Raises ValueError for a head
    other than "dual", else as `Encoder` does.
    """

    def __init__(self, config: EncoderConfig, *, key: Array):
        check_config(config, EncoderConfig)
        if config.head != "dual":
            raise ValueError(f"head: expected 'dual' for a DualEncoder, got {config.head!r}")
        self.config = config
        self.encoder = Encoder(config, key=key)

    def __call__(
        self,
        tokens: Int[Array, "*A 2 T"] | Float[Array, "*A 2 T F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*A 2"] | None = None,
        dropout_key: Array | None = None,
    ) -> Float[Array, "*A classes"]:
        """score(vectors of the first, vectors of the second)."""
        return self.encoder(tokens, mask=mask, lengths=lengths, dropout_key=dropout_key)

    def vectors(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T F"],
        *,
        mask: Mask = FULL,
        lengths: Int[Array, "*B"] | None = None,
    ) -> Float[Array, "*B W"]:
        """The pooled features of each sequence, without dropout."""
        tokens, real, mask = prepare(alone(self.config), tokens, mask, lengths)
        return pool(self.encoder.layers(tokens, mask, None), real, self.config.pooling)

    def score(self, a: Float[Array, "*B W"], b: Float[Array, "*B W"]) -> Float[Array, "*B classes"]:
        """Scores of pairs of vectors, whose leading axes broadcast. Raises ValueError for other
        widths and for axes that do not, TypeError for what is not an array of floats."""
        check_floats(a=a, b=b)
        check_width(self.config.width, a=a, b=b)
        try:
            np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            raise ValueError(
                f"b: expected axes that broadcast with a's {list(a.shape)}, got {list(b.shape)}; "
                "for each against each, give a[:, None]"
            ) from None
        return self.encoder.head.score(pair(a, b))
