"""A visible NaN shows: jitted or not, in q, k or v, whichever implementation runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import at_once

import attn
from attn import Causal, Padding
from attn.testing import inputs

pytestmark = pytest.mark.optimised  # the compiler it was that lost NaN


@pytest.mark.parametrize("T", [19, pytest.param(41, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("materialized", None),
        ("blockwise", 8),
        pytest.param("blockwise", None, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("place", at_once([0, 1, 2], [1]))
def test_a_visible_nan_shows_in_exactly_what_sees_it(place, name, block, T):
    # XLA's fused exp made 1 of it: jitted, a NaN query gave a plausible mean of values
    q, k, v, _ = inputs(attn.Softmax(), T=T, S=T)
    arrays = [q, k, v]
    arrays[place] = arrays[place].at[1, 4, 1, 0].set(jnp.nan)

    def loss(q, k, v):
        out = attn.dot_product_attention(
            q, k, v, mask=Causal(), implementation=name, block=block, return_lse=True
        )
        return out[0].sum(), out

    run = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    want = np.zeros((2, T, 4), bool)
    if place == 0:
        want[1, 4, 1] = True
    else:
        want[1, 4:, 2:] = True  # the query heads of key head 1
    for call in (run, jax.jit(run)):
        (_, (out, lse)), (dq, dk, dv) = call(*arrays)
        assert (np.isnan(out).all(-1) == want).all()
        assert (np.isnan(out).any(-1) == want).all()
        if place != 2:
            assert (np.isnan(lse) == want).all()
        if name == "materialized":
            # JAX's own derivative of a loss that is linear in the output knows no NaN
            continue
        # gradients of those rows, and of the keys they see, are no numbers (the row that holds the
        # NaN may have 0: nothing can be learned from it)
        itself = np.isnan(np.asarray(arrays[0])).any(-1)
        assert (np.isnan(dq).all(-1) | itself == want).all()
        heads = want.reshape(2, T, 2, 2).any(-1)
        for gradient in (dk, dv):
            seen = np.cumsum(heads[:, ::-1], 1)[:, ::-1] > 0
            others = np.isnan(gradient).any(-1) & ~seen
            assert not others.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [
        attn.Softmax(implementation="materialized"),
        attn.Softmax(implementation="blockwise"),
        attn.Softmax(implementation="blockwise", block=4),
        attn.SlidingWindow(left=3),
    ],
    ids=repr,
)
def test_an_infinite_query_shows_where_all_its_scores_are_minus_infinity(mechanism):
    """It was 0, as a query is that sees nothing: one that left the range of float16, say."""
    q, k, v, _ = inputs(mechanism, T=9, S=9)
    q, k = q.at[1, 4, 1].set(-jnp.inf), jnp.abs(k)
    grad = jax.grad(lambda *qkv: mechanism(*qkv, mask=Causal())[0].sum(), argnums=(0, 1, 2))
    out, gradients = jax.jit(lambda *qkv: (mechanism(*qkv, mask=Causal()), grad(*qkv)))(q, k, v)
    lost = np.zeros((2, 9, 4), bool)
    lost[1, 4, 1] = True
    assert (np.isnan(out) == lost[..., None]).all()
    assert all(np.isfinite(x).all() for x in gradients)
    sizes = dict(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=6, max_length=9)
    state, one = mechanism.init_state((2,), **sizes), lambda x: x[:, 4:5]
    out = jax.jit(mechanism.step)(state, *map(one, (q, k, v)))[1]
    assert (np.isnan(out).all(-1) == one(lost)).all()


@pytest.mark.slow
def test_a_row_whose_bias_is_all_minus_infinity_gives_no_nan():
    q, k, v, _ = inputs(attn.Softmax(), T=5, S=5)
    bias = jnp.zeros((1, 1, 5, 5)).at[:, :, 3].set(-jnp.inf)

    @jax.jit
    def loss(q, k, v, bias):
        mechanism = attn.Softmax(sinks="zero", implementation="materialized")
        out = mechanism(q, k, v, bias=bias)
        return out.sum(), out

    gradients, out = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, bias)
    assert (out[:, 3] == 0).all()
    assert all(np.isfinite(x).all() for x in gradients)


@pytest.mark.parametrize("mechanism", [attn.Sigmoid(), attn.Relu(), attn.Relu(power=1)], ids=repr)
def test_a_bias_of_minus_infinity_hides_a_key_from_the_definition_too(mechanism):
    """Its gradients were NaN, those of the mechanism were not."""
    q, k, v, _ = inputs(mechanism, T=5, S=5)
    bias = jnp.zeros((1, 1, 5, 5)).at[:, :, 3, :2].set(-jnp.inf)
    loss = lambda call: lambda *arrays: (call(*arrays[:3], bias=arrays[3]) ** 2).sum()
    grad = lambda call: jax.jit(jax.grad(loss(call), argnums=(0, 1, 2, 3)))(q, k, v, bias)
    for got, want in zip(grad(mechanism.reference), grad(mechanism)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [attn.Softmax(block=4), attn.SlidingWindow(left=2, right=0)])
@pytest.mark.parametrize("size", [3e38, -3e38])
def test_a_query_that_nobody_asks_about_reaches_no_gradient(mechanism, size):
    """Its scores were -inf in the forward pass, and in another order of adding up inf - inf."""
    q, k, v, _ = inputs(mechanism, T=9, S=9)
    past = lambda q, k, v: (mechanism(q, k, v, mask=Causal())[:, :5] ** 2).sum()
    grad = jax.jit(jax.grad(past, argnums=(0, 1, 2)))
    dirty, clean = grad(q.at[:, 5:].set(size), k, v), grad(q, k, v)
    for x, y in zip(dirty, clean):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [attn.Softmax(implementation="materialized"), attn.TopK(), attn.Luong(local="p")],
    ids=repr,
)
@pytest.mark.parametrize("size", [3e38, -3e38])
def test_padded_values_of_any_size_reach_no_gradient(mechanism, size):
    """The gradient of a hidden weight is as large as its value: sums of it were infinite."""
    q, k, v, learned = inputs(mechanism, T=9, S=9)
    mask = Padding(jnp.array([5, 9], jnp.int32))
    loss = lambda q, k, v: (mechanism(q, k, v, mask=mask, **learned) ** 2).sum()
    grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    dirty, clean = grad(q, k, v.at[0, 5:].set(size)), grad(q, k, v)
    for x, y in zip(dirty, clean):
        np.testing.assert_array_equal(x, y)
