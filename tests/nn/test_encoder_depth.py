"""Loop, scan, tied and rematerialised layers are one function; dropout is a function of its key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import SOFTMAX, Toy, build, jit, maps, run

from attn import FULL, HGRN2, Linformer
from attn.nn import dropout, functional, parameter_count
from attn.nn.keys import fold

RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 11, (3, 5)), jnp.int32)
LENGTHS = jnp.array([5, 3, 1], jnp.int32)
KEY = jax.random.key(7)


def score_and_gradient(encoder):
    apply, params = functional(encoder)

    def loss(params):
        y = apply(params, TOKENS, lengths=LENGTHS)
        return jnp.square(y).sum(), y

    (_, y), gradient = jit(jax.value_and_grad(loss, has_aux=True))(params)
    return y, gradient


def stacked(gradient):
    """The gradient of a loop in the form of a scan's."""
    blocks = [gradient["stack"]["blocks"][i] for i in range(2)]
    return jax.tree.map(lambda *x: jnp.stack(x), *blocks)


def near(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), a, b)


def test_scan_and_remat_have_the_gradients_of_the_loop():
    y, gradient = score_and_gradient(build(layers=2, positions="rotary"))
    near(score_and_gradient(build(layers=2, positions="rotary", remat=True)), (y, gradient))
    scan, scan_gradient = score_and_gradient(
        build(layers=2, positions="rotary", scan=True, remat=True)
    )
    near(scan, y)
    near(scan_gradient["stack"]["blocks"][0], stacked(gradient))
    near(scan_gradient["embedding"], gradient["embedding"])


@pytest.mark.slow
def test_scan_has_the_dropout_learned_arrays_and_maps_of_the_loop():
    loop, scan = (
        build(layers=2, dropout=0.3, mechanism=Toy(), scan=scan) for scan in (False, True)
    )
    near(run(scan, TOKENS, dropout_key=KEY), run(loop, TOKENS, dropout_key=KEY))
    near(maps(scan, TOKENS), maps(loop, TOKENS))


def test_tied_layers_share_one_block():
    one, two = build(tied=True), build(tied=True, layers=2)
    assert parameter_count(one) == parameter_count(two) < parameter_count(build(layers=2))
    untied = build(layers=2)
    first = nnx.state(untied.stack.blocks[0])
    nnx.update(untied.stack.blocks[1], first)
    nnx.update(two.stack.blocks[0], first)
    y, gradient = score_and_gradient(untied)
    tied, tied_gradient = score_and_gradient(two)
    near(tied, y)
    summed = jax.tree.map(lambda x: x.sum(0), stacked(gradient))
    near(tied_gradient["stack"]["blocks"][0], summed)
    scan = build(layers=2, tied=True, scan=True)
    nnx.update(scan.stack.blocks[0], first)
    near(run(scan, TOKENS, lengths=LENGTHS), tied)
    assert len(maps(scan, TOKENS)) == 2


def test_remat_recomputes():
    apply, params = functional(build(remat=True))
    jaxpr = jax.make_jaxpr(jax.grad(lambda p: apply(p, TOKENS).sum()))(params)
    assert "checkpoint" in str(jaxpr) or "remat" in str(jaxpr)


def test_mechanisms_may_differ_by_layer():
    hybrid = build(layers=2, mechanism=(SOFTMAX, Toy()))
    assert [b.attention.mechanism for b in hybrid.stack.blocks] == [SOFTMAX, Toy()]
    assert not np.allclose(
        run(hybrid, TOKENS), run(build(layers=2, mechanism=(Toy(), SOFTMAX)), TOKENS)
    )


def test_dropout_is_a_function_of_its_key():
    apply, params = functional(build(dropout=0.5))
    same = jnp.broadcast_to(TOKENS[:1], TOKENS.shape)
    dropped = jit(lambda key: apply(params, same, dropout_key=key))
    y = dropped(KEY)
    np.testing.assert_array_equal(dropped(KEY), y)
    assert not np.allclose(dropped(jax.random.key(8)), y)
    assert not np.allclose(y[0], y[1])  # linen's default drops the same numbers in every row
    plain = build()
    np.testing.assert_array_equal(run(plain, TOKENS, dropout_key=KEY), run(plain, TOKENS))
    np.testing.assert_array_equal(
        jit(apply)(params, TOKENS), run(plain, TOKENS)
    )  # no key, no dropout


def test_embedded_tokens_are_dropped_with_their_positions():
    encoder = build(dropout=0.25, positions="learned", embedding_norm=True)
    tokens = jnp.zeros((50, 6), jnp.int32)
    whole = encoder.embedding(tokens, dropout_key=None)
    x = encoder.embedding(tokens, dropout_key=KEY)
    assert abs((x == 0).mean() - 0.25) < 0.02
    near(jnp.where(x == 0, 0, whole / 0.75), x)


@pytest.mark.slow
def test_each_layer_drops_its_own():
    stack = build(dropout=0.5, layers=2, tied=True).stack
    (block,) = stack.blocks
    x, context = jax.random.normal(KEY, (1, 2, 12)), dict(mask=FULL, bias=None, positions=None)
    want = x
    for i in range(2):
        want = run(block, want, **context, dropout_key=fold(KEY, i))
    near(run(stack, x, **context, dropout_key=KEY), want)


def test_dropout_keeps_the_mean_and_the_dtype():
    x = jnp.full((200, 100), 3, jnp.bfloat16)
    y = np.asarray(dropout(x, 0.25, KEY).astype(jnp.float32))
    assert set(np.unique(y)) == {0.0, 4.0}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert dropout(x, 0.25, KEY).dtype == jnp.bfloat16
    assert dropout(x, 0.0, KEY) is x
    assert dropout(x, 0.25, None) is x


@pytest.mark.parametrize("rate", [1, 1.5, -0.5, float("nan"), True, "0.1"])
def test_a_rate_that_is_no_share_is_refused(rate):
    # 1 gave zeros whose gradient is NaN, -0.5 scaled by 1.5 and dropped nothing
    for key in (KEY, None):
        with pytest.raises(ValueError, match=r"^rate: expected a number in \[0, 1\), got "):
            dropout(jnp.ones(3), rate, key)


def test_bfloat16_follows_float32():
    wide, narrow = run(build(), TOKENS), run(build(dtype="bfloat16"), TOKENS)
    assert np.abs(wide - narrow).max() < 0.05 * np.abs(wide).max()


@pytest.mark.slow
def test_a_projection_of_all_layers_is_one_parameter():
    mechanism = Linformer(features=3, sharing="layer")
    one, two = (build(layers=n, mechanism=mechanism) for n in (1, 2))
    apart = build(layers=2, mechanism=Linformer(features=3, sharing="key_value"))
    size = one.stack.blocks[0].attention.learned["key_projection"].size
    assert parameter_count(two) == parameter_count(apart) - size
    # the gradient of what is shared is the sum of those of two layers that hold the same
    first = apart.stack.blocks[0].attention.learned["key_projection"][...]
    apart.stack.blocks[1].attention.learned["key_projection"][...] = first
    y, gradient = score_and_gradient(apart)
    shared, shared_gradient = score_and_gradient(two)
    near(shared, y)
    of = lambda g, i: g["stack"]["blocks"][i]["attention"]["learned"]["key_projection"][...]
    near(of(shared_gradient, 0), of(gradient, 0) + of(gradient, 1))
    near(maps(two, TOKENS), maps(apart, TOKENS))
    near(score_and_gradient(build(layers=2, mechanism=mechanism, remat=True))[0], y)
    with pytest.raises(ValueError, match="scan: expected mechanisms that keep"):
        build(layers=2, mechanism=mechanism, scan=True)


@pytest.mark.slow
def test_lower_bounds_of_all_layers_are_one_parameter():
    model = build(layers=3, mechanism=HGRN2.for_layers(3, chunk=4))
    first, second, third = (block.attention.learned for block in model.stack.blocks)
    assert not first  # its bound is 0
    assert second["lower_bounds"] is third["lower_bounds"]
    plain = build(layers=3, mechanism=HGRN2(chunk=4))
    assert parameter_count(model) - parameter_count(plain) == 3 * 12
    y, gradient = score_and_gradient(model)
    held = gradient["stack"]["blocks"][1]["attention"]["learned"]["lower_bounds"][...]
    assert (np.abs(held).max((0, 2)) > 0).all()
    near(score_and_gradient(build(layers=3, mechanism=model.config.mechanism, remat=True))[0], y)
