"""Attention on the current state, with input feeding (Luong et al. 2015, arXiv:1508.04025)."""

from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from attn.dense.luong import Luong
from attn.nn.aligned import Aligned, align, learned_of, recur
from attn.nn.keys import fold


class LuongSeq2Seq(Aligned):
    """hs_j from an LSTM over the source, whose last state starts the decoder; then for each token

        s_i = LSTM(s_{i-1}, [y_{i-1}; r_{i-1}])     r of the token before: input feeding
        a_ij = softmax_j(score(s_i, hs_j))          aligned with the CURRENT state
        r_i = tanh(W_c [c_i; s_i]), c_i = sum_j a_ij hs_j, scores from r_i

    r_0 = 0, `score` as in `luong_attention`. The paper stacks four layers and reverses the source;
    this is one layer, with the source in its own order.
    """

    def __init__(
        self,
        *,
        width: int,
        score: Literal["dot", "general", "concat"] = "general",
        key: Array,
        **sizes,
    ):
        """`sizes` are those of `Aligned`."""
        super().__init__(width=width, key=key, **sizes)
        rngs = lambda name: nnx.Rngs(fold(key, name))
        self.mechanism = Luong(score=score)
        self.reader = nnx.OptimizedLSTMCell(width, width, rngs=rngs("reader"))
        self.cell = nnx.OptimizedLSTMCell(2 * width, width, rngs=rngs("cell"))
        self.learned = learned_of(self.mechanism, width, fold(key, "alignment"))
        self.attentional = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs("attentional"))

    def read(self, x, real):
        nothing = jnp.zeros((*x.shape[:-2], self.width), x.dtype)
        last, h = recur(self.reader, (nothing, nothing), x, real)
        return (last, nothing), h

    def write(self, state, y, h, mask):
        own, before = state
        own, s = self.cell(own, jnp.concatenate([y, before], -1))
        context, alignment = align(self.mechanism, self.learned, s, h, mask)
        r = jnp.tanh(self.attentional(jnp.concatenate([context, s], -1)))
        return (own, r), r, alignment
