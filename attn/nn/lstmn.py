"""An LSTM that attends to its own past states (Cheng et al. 2016, arXiv:1601.06733)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn._arrays import check_floats
from attn._core import masked_softmax
from attn._settings import check_batch, check_count
from attn._varying import vary
from attn._wide import wide, wide_dtype
from attn.nn.keys import check_key, fold


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tape:
    """The tokens so far: hidden states, W_h times each, memory states, the last mean of hidden
    states, and how many there are."""

    h: Float[Array, "*B L W"]
    u: Float[Array, "*B L W"]
    c: Float[Array, "*B L W"]
    r: Float[Array, "*B W"]
    length: Int[Array, ""]


class LSTMN(nnx.Module):
    """An LSTM with intra-attention: in place of the last state, a weighted mean of all before,

        a_i = softmax_{i<t}(v . tanh(W_h h_i + W_x x_t + W_r r_{t-1}))
        r_t = sum_i a_i h_i, m_t = sum_i a_i c_i          a tape of hidden and of memory states
        i, f, o = sigmoid(W [r_t; x_t] + b), g = tanh(W_g [r_t; x_t] + b_g)
        c_t = f m_t + i g, h_t = o tanh(c_t)

    r_1 and m_1 are 0. x has `inputs` numbers (None: as many as h, `width`). O(T^2) time, one token
    after the other; no token depends on a later one, so padding at the end affects nothing before
    it, in value or gradient, if it is finite: NaN there makes every gradient NaN. Raises ValueError
    for a width or inputs below 1.
    """

    def __init__(self, width: int, *, inputs: int | None = None, key: Array):
        linear = lambda name, n, m, bias=False: nnx.Linear(
            n, m, use_bias=bias, rngs=nnx.Rngs(fold(key, name))
        )
        inputs = width if inputs is None else inputs
        check_count("width", width)
        check_count("inputs", inputs)
        check_key(key)
        self.width = width
        self.of_h, self.of_x = linear("h", width, width), linear("x", inputs, width)
        self.of_r = linear("r", width, width)
        self.score = linear("score", width, 1)
        self.gates = linear("gates", width + inputs, 4 * width, bias=True)

    def __call__(self, x: Float[Array, "*B T I"]) -> Float[Array, "*B T W"]:
        """h_t at every token."""
        return self._run(x)[0]

    def alignments(self, x: Float[Array, "*B T I"]) -> Float[Array, "*B T T"]:
        """The weights a of each token over the tokens before it; 0 for the first."""
        return self._run(x)[1]

    def empty(self, batch: tuple[int, ...], size: int, dtype=jnp.float32) -> Tape:
        """An empty tape with room for `size` tokens, in at least float32. Raises ValueError for a
        size below 1, TypeError for a batch that is not a tuple of sizes."""
        check_batch(batch)
        check_count("size", size)
        zeros = lambda *size: jnp.zeros((*batch, *size, self.width), wide_dtype(dtype))
        return Tape(zeros(size), zeros(size), zeros(size), zeros(), jnp.int32(0))

    def step(
        self, tape: Tape, x: Float[Array, "*B I"]
    ) -> tuple[Tape, Float[Array, "*B W"], Float[Array, "*B L"]]:
        """(tape, h_t, a) of one more token; h_t is NaN if the tape has no room for it. Raises
        TypeError for what is not a tape, ValueError for one of another batch."""
        if not isinstance(tape, Tape):
            raise TypeError(f"tape: expected that of `empty`, got {type(tape).__name__}")
        self._check(x, [])
        if tape.r.shape[:-1] != x.shape[:-1]:
            want, got = [*tape.r.shape[:-1], x.shape[-1]], list(x.shape)
            raise ValueError(f"x: expected {want} to go with tape, got {got}")
        t, size, dtype, x = tape.length, tape.h.shape[-2], x.dtype, wide(x)
        hidden = jnp.tanh(tape.u + (self.of_x(x) + self.of_r(tape.r))[..., None, :])
        scores = jnp.swapaxes(self.score(hidden), -1, -2)  # [*B, 1, L]
        seen = (jnp.arange(size) < t)[None]
        a = masked_softmax(scores[..., None, :, :], seen[None])[..., 0, 0, :]
        r, m = (jnp.einsum("...s,...sw->...w", a, y) for y in (tape.h, tape.c))
        i, f, o, g = jnp.split(self.gates(jnp.concatenate([r, x], -1)), 4, axis=-1)
        c = jax.nn.sigmoid(f) * m + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jnp.where(t < size, jax.nn.sigmoid(o) * jnp.tanh(c), jnp.nan)
        put = lambda y, new: y.at[..., t, :].set(new)
        # W_h h_t is projected once, when h_t is written to the tape
        tape = Tape(put(tape.h, h), put(tape.u, self.of_h(h)), put(tape.c, c), r, t + 1)
        return tape, h.astype(dtype), a

    def _check(self, x, axes: list[str]) -> None:
        """Raise TypeError unless x is floats, which h becomes too, ValueError unless it is [...,
        *axes, inputs]."""
        check_floats(x=x)
        inputs = self.of_x.in_features
        if x.ndim <= len(axes) or x.shape[-1] != inputs:
            raise ValueError(f"x: expected {['...', *axes, inputs]}, got {list(x.shape)}")

    def _run(self, x):
        self._check(x, ["T"])

        def one(tape, x):
            tape, h, a = self.step(tape, x)
            return tape, (h, a)

        T = x.shape[-2]
        start = self.empty(x.shape[:-2], max(T, 1), x.dtype)  # no index fits into a tape of 0
        _, found = jax.lax.scan(one, vary(start, x), jnp.moveaxis(x, -2, 0))
        h, a = (jnp.moveaxis(y, 0, -2) for y in found)
        return h, a[..., :T]
