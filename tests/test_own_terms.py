"""A mask and a bias of a user's own are what those of the library are."""

import copy
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
from attn.kernels.band import split
from attn.masks.language import joined
from attn.testing.contract import BrokenLaw, assert_close

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


@pytest.mark.parametrize(
    "bias", [Distance(jnp.ones(4)), attn.Alibi(jnp.ones(4)), attn.Relative(jnp.ones((8, 4)), 64)]
)
def test_a_bias_is_equal_by_its_fields(bias):
    assert copy.deepcopy(bias) == bias
    assert jax.tree.map(lambda x: 2 * x, bias) != bias
    with pytest.raises(TypeError, match="holds arrays and is not hashable"):
        hash(bias)


def test_a_static_bias_built_anew_compiles_nothing():
    @attn.biases.term
    class Steep(attn.Bias):
        slope: float

        def at(self, i, j):
            return -self.slope * jnp.abs(i - j)[None].astype(jnp.float32)

    run = jax.jit(attn.dot_product_attention, static_argnames="bias")
    for slope in (0.5, 0.5, 2.0):
        run(*qkv(), bias=Steep(slope))
    assert run._cache_size() == 2


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


@masks.term
class Before(attn.Causal):
    def sees(self, i, j):
        return j < i + self.offset

    def tiles(self, *bounds):
        return masks.Mask.tiles(self, *bounds)


@masks.term
class Odd(attn.Padding):
    def sees(self, i, j):
        return super().sees(i, j) & (j % 2 == 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (attn.Causal(), Before()),
        (Before(), attn.Causal(-1)),
        (Before(), Before(1)),
        (attn.Padding(3), Odd(4)),
        (Odd(4), Odd(3)),
    ],
    ids=str,
)
def test_a_mask_that_inherits_from_one_of_the_library_stays_itself(one, other):
    """Joined to one of the kind that it inherits from it became that one."""
    want = one.array(5, 5) & other.array(5, 5)
    np.testing.assert_array_equal((one & other).array(5, 5), want)
    np.testing.assert_array_equal((other & one).array(5, 5), want)
    # nor is it a band for the kernels of other libraries
    assert {type(term) for term in joined(split(one & other, 5, 5).rest)} & {Before, Odd}


def test_a_mask_that_counts_is_refused():
    """`&` and `~` of numbers are others than those of booleans, and of True those of a number."""

    @masks.term
    class Counts(attn.Mask):
        def sees(self, i, j):
            return (i - j) % 3

    @masks.term
    class All(attn.Mask):
        def sees(self, i, j):
            return True

    q, k, v = qkv()
    for join in (lambda m: m, lambda m: ~m, lambda m: attn.Causal() & m, lambda m: m | ~m):
        with pytest.raises(TypeError, match=r"^Counts.sees: expected booleans, got int"):
            attn.dot_product_attention(q, k, v, mask=join(Counts()))
        with pytest.raises(TypeError, match=r"^All.sees: expected booleans, got bool"):
            attn.dot_product_attention(q, k, v, mask=join(All()))


@masks.term
class OfQueries(attn.Mask):
    """The first few see all; what `tiles` says has one column."""

    count: int

    def sees(self, i, j):
        return i < self.count

    def tiles(self, i0, i1, j0, j1):
        return i0 < self.count, i1 < self.count


@masks.term
class OfKeys(attn.Mask):
    count: int

    def sees(self, i, j):
        return j < self.count

    def tiles(self, i0, i1, j0, j1):
        return (j0 < self.count, j1 < self.count) if self.count else (False, False)


@pytest.mark.parametrize("mask", [OfQueries(9), OfKeys(9), ~OfKeys(9), ~OfKeys(0)], ids=str)
def test_tiles_of_rows_or_columns_alone_are_those_of_all_blocks(mask):
    """The first block of each row, or of each column, was taken for all: wrong without an error."""
    q, k, v = qkv()
    assert mask.density(600, 600) == pytest.approx(mask.array(600, 600).mean())
    attn.testing.check_mask(mask, 19, 19)
    run = jax.jit(functools.partial(attn.dot_product_attention, block=4))
    want = run(q, k, v, mask=masks.Array(mask.array(19, 19)[None]))
    close(run(q, k, v, mask=mask), want, what="blocks")


@pytest.mark.parametrize("T", [16, 600])
def test_abs_of_what_is_traced_or_not(T):
    @masks.term
    class Nearby(attn.Mask):
        def sees(self, i, j):
            return abs(i - j) <= 3

    q, k, v = qkv(T)
    for how in ("blockwise", "materialized"):
        run = jax.jit(functools.partial(attn.dot_product_attention, implementation=how))
        want = run(q, k, v, mask=attn.Window(3, 3))
        close(run(q, k, v, mask=Nearby()), want, what=how)


def test_a_bias_of_keys_alone_for_grouped_heads_and_some_of_the_heads():
    @attn.biases.term
    class OfKeys(attn.Bias):
        x: jax.Array = array_field(1)

        def at(self, i, j):
            return self.x[j][None]

    q, k, v = qkv()
    bias = OfKeys(jnp.sin(jnp.arange(19.0)))
    k, v = k[:, :, :2], v[:, :, :2]
    want = attn.dense_attention(q, k, v, mask=masks.FULL, bias=bias)
    close(attn.dot_product_attention(q, k, v, bias=bias, block=4), want, what="grouped heads")
    of = attn.Alibi(jnp.array([0.5, 1.0, 2.0, 4.0])).of_heads(np.array([2, 0]))
    log = Distance(jnp.array([0.5, 1.0, 2.0, 4.0])).of_heads(np.array([2, 0]))
    assert of.array(3, 3).shape == log.array(3, 3).shape == (2, 3, 3)
    np.testing.assert_array_equal(log.array(3, 3), Distance(jnp.array([2.0, 0.5])).array(3, 3))


def test_a_forgotten_decorator_and_arrays_that_do_not_fit_are_named():
    class Bare(attn.Mask):
        def sees(self, i, j):
            return i >= j

    class BareBias(attn.Bias):
        def at(self, i, j):
            return 0.0 * (i - j)[None]

    @attn.biases.term
    class Ids(attn.Bias):
        ids: jax.Array = array_field(1)

    q, k, v = qkv()
    with pytest.raises(TypeError, match=r"got Bare; put @attn.masks.term on it"):
        attn.dot_product_attention(q, k, v, mask=Bare())
    with pytest.raises(TypeError, match=r"got BareBias; put @attn.biases.term on it"):
        attn.dot_product_attention(q, k, v, bias=BareBias())
    # in a larger mask too, and where the decorator is that of the class it inherits from
    for join in (lambda m: m & attn.Causal(), lambda m: attn.Causal() | m, lambda m: ~m):
        with pytest.raises(TypeError, match=r"got Bare; put @attn.masks.term on it"):
            join(Bare())
    with pytest.raises(TypeError, match=r"got Heir; put @attn.masks.term on it"):
        attn.dot_product_attention(q, k, v, mask=type("Heir", (attn.Window,), {})(1, 2))
    with pytest.raises(TypeError, match=r"got Heir; put @attn.biases.term on it"):
        attn.dot_product_attention(q, k, v, bias=type("Heir", (attn.Alibi,), {})(jnp.ones(2)))
    with pytest.raises(TypeError, match="expected arrays of floats in Ids, got int32"):
        attn.dot_product_attention(q, k, v, bias=Ids(jnp.arange(19)))
    with pytest.raises(ValueError, match=r"Near.place: expected shape \[2, 19\], got \[3, 19\]"):
        attn.dot_product_attention(q, k, v, mask=Near(jnp.ones((3, 19))))


def test_masks_within_the_library_are_not_in_json():
    with pytest.raises(ValueError, match="term: expected one of"):
        masks.from_json('{"term": "Around", "queries": 1, "keys": 2, "reach": 3}')


def test_tiles_that_lie_are_found():
    """Blocks are believed: what they leave out is in no result, and raises nothing."""

    @masks.term
    class Past(attn.Mask):
        shift: int = 0  # of the tiles; 0 is right
        eager: bool = False

        def sees(self, i, j):
            return i >= j

        def tiles(self, i0, i1, j0, j1):
            return i1 + self.shift >= j0, (i1 if self.eager else i0) >= j1

    attn.testing.check_mask(Past())
    attn.testing.check_mask(~Past() | attn.Window(2, 0), 5, 9)
    for mask in (Multiples(3), Near(PLACES)):
        attn.testing.check_mask(mask, 19, 19)
    with pytest.raises(BrokenLaw, match=r"tiles skips queries 2\.\., keys 2\.\. \(1 x 1\)"):
        attn.testing.check_mask(Past(shift=-1) & ~attn.Prefix(2))
    with pytest.raises(BrokenLaw, match=r"tiles calls queries 0\.\., keys 0\.\. \(4 x 4\) full"):
        attn.testing.check_mask(Past(eager=True))
    with pytest.raises(TypeError, match=r"mask: expected an attn\.Mask, got ndarray"):
        attn.testing.check_mask(np.ones((2, 2), bool))
