"""An LSTM that attends to its own past states (Cheng et al. 2016, arXiv:1601.06733)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn._core import masked_softmax
from attn.nn.keys import fold


class LSTMN(nnx.Module):
    """The LSTM network with intra-attention: in place of the last state, a mean of all before it,

        a_i = softmax_{i<t}(v . tanh(W_h h_i + W_x x_t + W_r r_{t-1}))
        r_t = sum_i a_i h_i, m_t = sum_i a_i c_i          a tape of hidden and of memory states
        i, f, o = sigmoid(W [r_t; x_t] + b), g = tanh(W_g [r_t; x_t] + b_g)
        c_t = f m_t + i g, h_t = o tanh(c_t)

    r_1 and m_1 are 0. O(T^2) time, one token after the other; no token depends on a later one, so
    padding at the end reaches nothing before it.
    """

    def __init__(self, width: int, *, key: Array):
        linear = lambda name, n, m, bias=False: nnx.Linear(
            n, m, use_bias=bias, rngs=nnx.Rngs(fold(key, name))
        )
        self.width = width
        self.of_h, self.of_x = linear("h", width, width), linear("x", width, width)
        self.of_r = linear("r", width, width)
        self.score = linear("score", width, 1)
        self.gates = linear("gates", 2 * width, 4 * width, bias=True)

    def __call__(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B T W"]:
        """h_t at every token."""
        return self._run(x)[0]

    def alignments(self, x: Float[Array, "*B T W"]) -> Float[Array, "*B T T"]:
        """How much of each token before it a token's state takes; nothing for the first."""
        return self._run(x)[1]

    def _run(self, x):
        T, nothing = x.shape[-2], jnp.zeros_like(x[..., 0, :])
        # W_h h_i is projected once, when h_i is written to the tape
        tape = (jnp.zeros_like(x),) * 3
        graph, params = nnx.split(self)

        def one(carry, given):
            (h, u, c), r = carry
            x, t = given
            self = nnx.merge(graph, params)
            hidden = jnp.tanh(u + (self.of_x(x) + self.of_r(r))[..., None, :])
            scores = jnp.swapaxes(self.score(hidden), -1, -2)  # [*B, 1, T]
            seen = (jnp.arange(T) < t)[None]
            a = masked_softmax(scores[..., None, :, :], seen[None])[..., 0, 0, :]
            r, m = (jnp.einsum("...s,...sw->...w", a, y) for y in (h, c))
            i, f, o, g = jnp.split(self.gates(jnp.concatenate([r, x], -1)), 4, axis=-1)
            new = jax.nn.sigmoid(f) * m + jax.nn.sigmoid(i) * jnp.tanh(g)
            out = jax.nn.sigmoid(o) * jnp.tanh(new)
            put = lambda y, at: y.at[..., t, :].set(at)
            return ((put(h, out), put(u, self.of_h(out)), put(c, new)), r), (out, a)

        _, found = jax.lax.scan(one, (tape, nothing), (jnp.moveaxis(x, -2, 0), jnp.arange(T)))
        return tuple(jnp.moveaxis(y, 0, -2) for y in found)
