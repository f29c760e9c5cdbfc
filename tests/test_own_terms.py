"""A mask and a bias of a user's own are what those of the library are."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import masks
from attn.biases import array_field
from attn.testing.contract import assert_close

close = functools.partial(assert_close, dtype=jnp.float32)


@masks.term
class Multiples(attn.Mask):
    period: int = 2

    def sees(self, i, j):
        return (i - j) % self.period == 0


@masks.term
class Near(attn.Mask):
    """Of a place on a line for each token."""

    place: jax.Array = masks.array_field(1)

    def sees(self, i, j):
        return jnp.abs(self.place[..., i] - self.place[..., j]) < 0.5


@attn.biases.term
class Distance(attn.Bias):
    slope: jax.Array = array_field(1)

    def at(self, i, j):
        return -self.slope[:, None, None] * jnp.log1p(jnp.abs(i - j))


def qkv(T=19, N=4):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (2, T, N, 3)) for key in keys]


PLACES = jax.random.uniform(jax.random.key(1), (2, 19)) * 2


@pytest.mark.parametrize(
    "mask",
    [
        Multiples(3),
        attn.Causal() & (attn.Window(2, 0) | ~Multiples(3)),
        Near(PLACES),
        Near(PLACES[:1]),
    ],
    ids=["static", "joined", "array", "array of one row"],
)
def test_a_mask_of_ones_own_is_its_array(mask):
    q, k, v = qkv()
    drawn = np.broadcast_to(mask.array(19, 19), (2, 19, 19))
    assert drawn.any()
    assert not drawn.all()
    want = attn.dense_attention(q, k, v, mask=masks.Array(drawn))
    run = jax.jit(lambda mask: attn.dot_product_attention(q, k, v, mask=mask, block=4))
    close(run(mask), want, what="a mask given to a jitted function")
    sigmoid = functools.partial(attn.Sigmoid(), q, k, v)
    close(sigmoid(mask=mask), sigmoid(mask=masks.Array(drawn)), what="another mechanism")
    assert masks.from_json(mask.to_json()) == mask


@pytest.mark.parametrize("heads", [1, 4])
def test_a_bias_of_ones_own_has_its_gradient(heads):
    q, k, v = qkv()

    def loss(slope, block):
        how = {"block": block} if block else {"implementation": "materialized"}
        bias, mask = Distance(slope), attn.Causal()
        return jnp.square(attn.dot_product_attention(q, k, v, mask=mask, bias=bias, **how)).sum()

    slope = jnp.linspace(0.5, 2, heads)
    got, want = (jax.value_and_grad(loss)(slope, block) for block in (4, None))
    column = lambda x: jnp.reshape(x, (-1, 1))
    close(column(got[0]), column(want[0]), what="loss")
    close(column(got[1]), column(want[1]), what="gradient of the slope", kind="gradient")


def test_what_cannot_honour_it_says_its_name():
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match=r"Linear cannot honour Causal \| Multiples here"):
        attn.linear_attention(q, k, v, mask=attn.Causal() | Multiples(3))
    with pytest.raises(NotImplementedError, match=r"bias: .* Distance"):
        attn.linear_attention(q, k, v, bias=Distance(jnp.ones(4)))


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="term: expected a subclass of Mask, got <class 'int'>"):
        masks.term(int)
    with pytest.raises(TypeError, match="term: expected a subclass of Bias"):
        attn.biases.term(Multiples)
    with pytest.raises(ValueError, match="Causal is a mask of the library"):
        masks.term(type("Causal", (attn.Mask,), {"__module__": __name__}))
    with pytest.raises(NotImplementedError, match=r"Blank must define sees\(i, j\)"):
        masks.term(type("Blank", (attn.Mask,), {"__module__": __name__}))().array(2, 2)
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"Distance.at to give \[4, 1, 1\] or .*, got \[3, 1, 1\]"):
        attn.dot_product_attention(q, k, v, bias=Distance(jnp.ones(3)))


def test_one_may_be_defined_again_as_in_a_notebook():
    again = type("Multiples", (attn.Mask,), {"__module__": __name__, "__annotations__": {"n": int}})
    try:
        again = masks.term(again)
        assert type(masks.from_json('{"term": "Multiples", "n": 3}')) is again
        assert [f.name for f in dataclasses.fields(again)] == ["n"]
    finally:
        masks.language.KINDS["Multiples"] = sys.modules[__name__].Multiples
