"""An encoder-decoder of LSTMNs (Cheng et al. 2016, arXiv:1601.06733): shallow attention fusion."""

import jax.numpy as jnp
from jaxtyping import Array

from attn._settings import check_count
from attn.dense.additive import Additive
from attn.nn.aligned import Aligned, align, learned_of
from attn.nn.keys import fold
from attn.nn.lstmn import LSTMN


class LSTMNSeq2Seq(Aligned):
    """Attention within both sequences, and Bahdanau's between them; for each token

        h_j = LSTMN(x_1 .. x_j)                     the source, each state from all before it
        a_ij = softmax_j(v . tanh(W s_{i-1} + U h_j))   aligned with the state before
        s_i = LSTMN over [y_{i-1}; c_i] and all before it, c_i = sum_j a_ij h_j, scores from s_i

    s_0 = 0 and the writer's tape is empty. It has room for `max_length` tokens; more raise a
    ValueError. O(S^2 + T^2 + T S) time.
    """

    def __init__(self, *, width: int, max_length: int, key: Array, **sizes):
        """`sizes` are those of `Aligned`. Raises ValueError for a `max_length` below 1."""
        check_count("max_length", max_length)
        super().__init__(width=width, key=key, **sizes)
        self.max_length, self.mechanism = max_length, Additive()
        self.reader = LSTMN(width, key=fold(key, "reader"))
        self.writer = LSTMN(width, inputs=2 * width, key=fold(key, "writer"))
        self.learned = learned_of(self.mechanism, width, fold(key, "alignment"))

    def read(self, x, real):
        tape = self.writer.empty(x.shape[:-2], self.max_length, x.dtype)
        return (tape, jnp.zeros_like(x[..., 0, :])), self.reader(x)

    def write(self, state, y, h, mask):
        tape, s = state
        context, alignment = align(self.mechanism, self.learned, s, h, mask)
        tape, s, _ = self.writer.step(tape, jnp.concatenate([y, context], -1))
        return (tape, s), s, alignment
