"""The first encoder-decoder with attention (Bahdanau et al. 2014, arXiv:1409.0473)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from attn.dense.additive import Additive
from attn.nn.aligned import Aligned, align, learned_of, recur
from attn.nn.keys import fold

SCORE = Additive()


class Bahdanau(Aligned):
    """h_j from a bidirectional GRU over the source; then for each token, in this order,

        a_ij = softmax_j(v . tanh(W s_{i-1} + U h_j))     aligned with the PREVIOUS state
        c_i = sum_j a_ij h_j
        s_i = GRU(s_{i-1}, [y_{i-1}; c_i])
        t_i = U_o s_{i-1} + V_o y_{i-1} + C_o c_i, scores from maxout(t_i)

    with s_0 = tanh(W_s h of the backward GRU at the first token), as in the paper's appendix A.
    Differences: each direction has `width` / 2 units, so that h_j is as wide as s_i, and the GRU
    is Flax's, whose reset gate acts after the product. Raises ValueError for an odd width.
    """

    def __init__(self, *, width: int, key: Array, **sizes):
        """`sizes` are those of `Aligned`."""
        super().__init__(width=width, key=key, **sizes)  # refuses what is not a number
        if width % 2:
            raise ValueError(
                f"width: expected an even number, half for each direction, got {width}"
            )
        rngs = lambda name: nnx.Rngs(fold(key, name))
        self.forward = nnx.GRUCell(width, width // 2, rngs=rngs("forward"))
        self.backward = nnx.GRUCell(width, width // 2, rngs=rngs("backward"))
        self.start = nnx.Linear(width // 2, width, rngs=rngs("start"))
        self.cell = nnx.GRUCell(2 * width, width, rngs=rngs("cell"))
        self.learned = learned_of(SCORE, width, fold(key, "alignment"))
        self.readout = nnx.Linear(3 * width, 2 * width, rngs=rngs("readout"))

    def read(self, x, real):
        nothing = jnp.zeros((*x.shape[:-2], self.width // 2), x.dtype)
        _, ahead = recur(self.forward, nothing, x, real)
        first, back = recur(self.backward, nothing, x, real, reverse=True)
        return jnp.tanh(self.start(first)), jnp.concatenate([ahead, back], -1)

    def write(self, state, y, h, mask):
        context, alignment = align(SCORE, self.learned, state, h, mask)
        t = self.readout(jnp.concatenate([state, y, context], -1))
        state, _ = self.cell(state, jnp.concatenate([y, context], -1))
        return state, t.reshape(*t.shape[:-1], self.width, 2).max(-1), alignment
