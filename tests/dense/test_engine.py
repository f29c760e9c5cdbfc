"""What the blockwise engine promises beyond the laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from tiers import at_once

import attn
from attn import Causal, Padding, Segments
from attn.testing import inputs
from attn.testing.cases import widen

BIASES = {
    "alibi": lambda T: attn.Alibi(jnp.asarray(attn.positions.alibi_slopes(4))),
    "t5": lambda T: attn.Relative(_normal(32, 4)),
    "t5, causal": lambda T: attn.Relative(_normal(32, 4), max_distance=20, bidirectional=False),
    "array": lambda T: attn.ArrayBias(_normal(2, 4, T, T)),
    "array, shared": lambda T: attn.ArrayBias(_normal(1, 4, 1, T)),
}


def _normal(*shape):
    return jnp.asarray(np.random.default_rng(5).normal(size=shape), jnp.float32)


def _squares(q, k, v, bias, **options):
    return (attn.dot_product_attention(q, k, v, bias=bias, **options) ** 2).sum()


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("block", at_once([8, (16, 24), None], [8, None]))
def test_each_bias_and_its_gradient_equal_the_materialized_ones(name, block):
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    bias = BIASES[name](45)

    def gradients(implementation, block=None):
        loss = functools.partial(
            _squares, mask=Causal(), implementation=implementation, block=block
        )
        return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, bias))

    for want, got in zip(gradients("materialized"), gradients("blockwise", block)):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.slow
def test_a_bias_table_in_float32_gets_its_gradient_in_float64_attention():
    """It raised: the gradient of a tile was float64, that of the table float32."""
    with jax.enable_x64(True):
        q, k, v, _ = inputs(attn.Softmax(), T=9, S=9, dtype=jnp.float64)
        bias = BIASES["t5"](9)
        loss = functools.partial(_squares, q, k, v)
        want, got = (
            jax.grad(functools.partial(loss, implementation=name))(bias).table
            for name in ("materialized", "blockwise")
        )
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())


FORMS = {  # in short rows, in loops, in strips
    "short": functools.partial(attn.dot_product_attention, implementation="blockwise"),
    "loops": functools.partial(attn.dot_product_attention, block=8),
    "strips": functools.partial(attn.window_attention, left=600, right=600),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "offset", [-1e4, -1e9, np.finfo(np.float32).min, 1.5e38, np.finfo(np.float32).max]
)
def test_a_row_that_is_moved_as_a_whole_weighs_as_before(form, offset):
    """An additive mask that hides a padded row's every key by a large number: weights sum to 1, in
    the gradients too. Nor does one so large the other way, that shows them."""
    T = 600 if form == "strips" else 16
    v, do = (jax.random.normal(key, (1, T, 1, 4)) for key in jax.random.split(jax.random.key(0)))
    bias = jnp.full((1, 1, T, T), offset, jnp.float32)
    zero = jnp.zeros_like(v)
    attend = lambda q, v, bias: FORMS[form](q, zero, v, bias=bias)
    out, pull = jax.vjp(attend, zero, v, bias)
    dq, dv, d_bias = pull(do)
    spread = lambda x: jnp.broadcast_to(x, v.shape)
    np.testing.assert_allclose(out, spread(v.mean(1, keepdims=True)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dv, spread(do.mean(1, keepdims=True)), rtol=1e-5, atol=1e-6)
    of_scores = do[0, :, 0] @ (v - v.mean(1))[0, :, 0].T / T
    np.testing.assert_allclose(d_bias[0, 0], of_scores, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(dq, 0)


def test_a_bias_that_nobody_learns_is_not_differentiated():
    q, k, v, _ = inputs(attn.Softmax(), T=45, S=45)
    bias = BIASES["array"](45)
    loss = lambda q, bias: _squares(q, k, v, bias, mask=Causal(), block=8)
    count = lambda argnums: str(jax.make_jaxpr(jax.grad(loss, argnums))(q, bias)).count(
        "dot_general"
    )
    size = lambda argnums: len(str(jax.make_jaxpr(jax.grad(loss, argnums))(q, bias)))
    assert count(0) == count((0, 1))
    assert size(0) < size((0, 1))


@pytest.mark.parametrize("block", [8, (16, 8), None])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Padding(jnp.array([0, 13]))], ids=str)
def test_dropout_is_the_same_for_every_implementation_and_block(block, mask):
    q, k, v, _ = inputs(attn.Softmax())
    options = dict(mask=mask, dropout_rate=0.3, dropout_key=jax.random.key(1), logit_cap=4.0)

    def run(implementation, block=None):
        loss = functools.partial(_squares, implementation=implementation, block=block, **options)
        grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
        return jax.tree.leaves(grad(q, k, v, None))

    for want, got in zip(run("materialized"), run("blockwise", block)):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BIASES][:4])
def test_a_bias_that_shards_share_has_a_gradient(name):
    # its carry did not vary over the mesh as the scores do: "carry input and output differ"
    q, k, v, _ = inputs(attn.Softmax(), T=20, S=20)
    bias = BIASES[name](20)
    if name == "array":
        bias = attn.ArrayBias(bias.values[:1])
    mesh = jax.make_mesh((1,), ("b",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    b, shared = PartitionSpec("b"), PartitionSpec()
    f = lambda q, k, v, bias: attn.dot_product_attention(q, k, v, bias=bias, block=8)
    sharded = jax.shard_map(f, mesh=mesh, in_specs=(b, b, b, shared), out_specs=b)
    gradient = lambda f: jax.grad(lambda *a: (f(*a) ** 2).sum(), argnums=3)(q, k, v, bias)
    for want, got in zip(
        *(jax.tree.leaves(jax.jit(gradient, static_argnums=0)(x)) for x in (f, sharded))
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_parts_of_the_keys_merge_to_the_whole():
    q, k, v, _ = inputs(attn.Softmax(), T=19, S=30)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, 30)), jnp.int32)
    segments = lambda s: Segments(ids[:, :19], ids[:, s])
    cut = (slice(0, 11), slice(11, 12), slice(12, 30))

    def loss(merged, q, k, v):
        if merged:
            parts = [
                attn.dot_product_attention(
                    q, k[:, s], v[:, s], mask=segments(s), return_lse=True, block=8
                )
                for s in cut
            ]
            out, lse = attn.merge(parts)
        else:
            whole = segments(slice(None))
            out, lse = attn.dot_product_attention(q, k, v, mask=whole, return_lse=True, block=8)
        return (out**2).sum() + jnp.where(lse > -1e30, lse, 0).sum(), (out, lse)

    grad = lambda loss: jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    run = lambda merged: jax.jit(grad(functools.partial(loss, merged)))(q, k, v)
    for want, got in zip(*(jax.tree.leaves(run(x)) for x in (False, True))):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [8, None])
def test_rows_have_their_log_sum_exp_where_values_have_no_width(block):
    q, k, v, _ = inputs(attn.Softmax(), T=19, S=19, D=0)
    mask = Causal() & Padding(jnp.asarray([0, 17]))

    def run(implementation, block=None):
        call = functools.partial(attn.dot_product_attention, mask=mask, return_lse=True)
        out, lse = call(q, k, v, implementation=implementation, block=block)
        assert out.shape == (2, 19, 4, 0)
        return lse

    np.testing.assert_allclose(run("blockwise", block), run("materialized"), rtol=1e-6)


def test_merge_has_the_derivatives_that_it_says():
    out, lse = jax.random.normal(jax.random.key(0), (2, 5, 3, 4)), jnp.ones((2, 5, 3))
    total = lambda x: jnp.sin(attn.merge([(x, lse), (jnp.cos(x), 2 * lse)])[0]).sum()
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(total, (out,), (out,))
    _, both = jax.jvp(jax.grad(total), (out,), (jnp.ones_like(out),))
    near = lambda by: jax.grad(total)(out + by)
    np.testing.assert_allclose(both, (near(1e-2) - near(-1e-2)) / 2e-2, atol=1e-3)


def test_merge_of_parts_that_a_row_does_not_see():
    empty = jnp.zeros((1, 2, 1, 3)), jnp.full((1, 2, 1), -jnp.inf)
    out, lse = attn.merge([empty, empty])
    assert (out == 0).all()
    assert (lse == -jnp.inf).all()
    with pytest.raises(ValueError, match="parts"):
        attn.merge(iter([]))
    with pytest.raises(TypeError, match=r"^parts: expected pairs .*, got None"):
        attn.merge(None)
    np.testing.assert_array_equal(attn.merge(x for x in [empty, empty])[0], out)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_merge_keeps_narrow_dtypes_in_values_and_gradients(dtype):
    parts = [(_normal(1, 3, 2, 4), _normal(1, 3, 2)) for _ in range(2)]
    narrow = jax.tree.map(lambda x: x.astype(dtype), parts)
    total = lambda parts: sum(x.astype(jnp.float32).sum() for x in attn.merge(parts))
    for f in (attn.merge, jax.grad(total)):
        want, got = (jax.tree.leaves(f(x)) for x in (parts, narrow))
        for x, y in zip(want, got):
            assert y.dtype == dtype
            np.testing.assert_allclose(y, x, rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.optimised
def test_what_stands_in_a_part_that_a_row_does_not_see_is_not_asked_for():
    q, k, v, _ = inputs(attn.Softmax(), T=5, S=5)
    seen = attn.dot_product_attention(q, k, v, return_lse=True)
    hidden = jnp.full_like(seen[1], -jnp.inf).at[0, 0].set(0.0)  # the first row sees both

    def loss(seen, other):
        out, lse = attn.merge([seen, (other, hidden)])
        return (out[:, 1:] ** 2).sum() + lse[:, 1:].sum(), (out, lse)

    grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    found, (out, lse) = grad(seen, jnp.full_like(seen[0], jnp.nan))
    want, (out_of_zeros, lse_of_zeros) = grad(seen, jnp.zeros_like(seen[0]))
    assert np.isnan(out[0, 0]).all()
    np.testing.assert_array_equal(out.at[0, 0].set(0), out_of_zeros.at[0, 0].set(0))
    np.testing.assert_allclose(out[0, 1:], seen[0][0, 1:], rtol=1e-6)
    np.testing.assert_array_equal(lse, lse_of_zeros)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("T", "block"), [(20, None), (20, 8), (600, None)])
def test_a_batch_may_stay_a_symbol_in_an_export(T, block):
    f = jax.jit(lambda q: attn.dot_product_attention(q, q, q, mask=Causal(), block=block))
    (b,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(f)(jax.ShapeDtypeStruct((b, T, 2, 4), jnp.float32))
    q = _normal(3, T, 2, 4)
    np.testing.assert_allclose(exported.call(q), f(q), rtol=1e-5, atol=1e-5)


def test_numbers_may_be_numpys():
    q, k, v, _ = inputs(attn.Softmax())
    key, number = jax.random.key(0), np.float32(0.5)
    attend = lambda x: attn.dot_product_attention(
        q, k, v, logit_cap=x, dropout_rate=x, dropout_key=key
    )
    np.testing.assert_array_equal(attend(number), attend(0.5))
    record = attn.Softmax(temperature=number, logit_cap=number, dropout_rate=number)
    assert record == attn.Softmax(temperature=0.5, logit_cap=0.5, dropout_rate=0.5)


def test_dropout_takes_one_key():
    q, k, v, _ = inputs(attn.Softmax())
    for keys, kind in ((jax.random.split(jax.random.key(0)), ValueError), (0, TypeError)):
        with pytest.raises(kind, match="dropout_key: expected"):
            attn.dot_product_attention(q, k, v, dropout_rate=0.1, dropout_key=keys)


OUT, LSE = jnp.ones((2, 5, 4, 3)), jnp.zeros((2, 5, 4))


@pytest.mark.parametrize(
    ("parts", "error", "named"),
    [
        ([(OUT, LSE), (OUT, jnp.swapaxes(LSE, -1, -2))], ValueError, r"parts\[1\]: .*\[2, 4, 5\]"),
        ([(OUT, LSE[..., :1])], ValueError, r"parts\[0\]: .*\[2, 5, 1\]"),
        ([(OUT, LSE), (OUT[:, :3], LSE[:, :3])], ValueError, r"parts\[1\]: .*\[2, 3, 4, 3\]"),
        ([(OUT, jnp.zeros(()))], ValueError, r"parts\[0\]"),
        ([(jnp.ones(()), LSE)], ValueError, r"parts\[0\]"),
        ([(OUT, LSE), OUT], TypeError, r"parts\[1\]: expected \(output"),
        ([(OUT, LSE, LSE)], TypeError, r"parts\[0\]"),
        ([(OUT, LSE.astype(int))], TypeError, r"parts\[0\]"),
        ("ab", TypeError, r"parts\[0\]: expected \(output, log-sum-exp\)"),
    ],
)
def test_parts_that_do_not_fit_are_named(parts, error, named):
    with pytest.raises(error, match=named):
        attn.merge(parts)


@pytest.mark.parametrize("name", ["softmax", "window", "forgetting"])
def test_prefill_then_steps_equal_the_whole(name):
    settings = {"softmax": {}, "window": {"left": 5, "right": 0}, "forgetting": {}}[name]
    mechanism = attn.MECHANISMS[name](**settings)
    q, k, v, gates = inputs(mechanism, T=14, S=14)
    at = lambda tree, s: jax.tree.map(lambda x: x[:, s], tree)
    prefill, step = (
        jax.jit(mechanism.prefill, static_argnames="max_length"),
        jax.jit(mechanism.step),
    )
    whole = jax.jit(mechanism.reference)(q, k, v, mask=Causal(), **gates)
    for T in (1, 3, 9, 14):
        start = slice(0, T)
        state, out = prefill(*at((q, k, v), start), max_length=14, **at(gates, start))
        np.testing.assert_allclose(out, whole[:, start], rtol=1e-4, atol=1e-5)
        for t in range(T, 14):
            one = slice(t, t + 1)
            state, out = step(state, *at((q, k, v), one), **at(gates, one))
            np.testing.assert_allclose(out, whole[:, one], rtol=1e-4, atol=1e-5)


def test_grouped_heads_have_a_cache_of_their_own_size():
    sizes = dict(num_heads=8, head_dim=16, value_dim=16, max_length=64)
    numbers = lambda K: sum(
        x.size
        for x in jax.tree.leaves(
            jax.eval_shape(lambda: attn.Softmax().init_state((1,), num_kv_heads=K, **sizes))
        )
    )
    assert abs(numbers(8) / numbers(2) - 4) < 0.01


def test_a_full_cache_says_so():
    m = attn.Softmax()
    q, k, v, _ = inputs(m, T=3, S=3)
    state, _ = m.prefill(q, k, v, max_length=3)
    state, out = m.step(state, *(x[:, :1] for x in (q, k, v)))
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("implementation", ValueError, 3),
        ("implementation", ValueError, "flash"),
        ("implementation", NotImplementedError, "cudnn"),
        ("scale", TypeError, "a"),
        ("scale", ValueError, jnp.ones(3)),
        ("block", ValueError, (8, 16, 1)),
        ("block", ValueError, "8"),
        ("logit_cap", ValueError, jnp.float32(3)),
        ("sinks", ValueError, jnp.ones(3)),
        ("sinks", TypeError, "x"),
        ("bias", TypeError, attn.Alibi([1.0, 2.0, 3.0, 4.0])),
        ("bias", TypeError, attn.Relative([[1.0]])),
        ("dropout_rate", ValueError, 1.0),
        ("dropout_rate", ValueError, float("nan")),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(name, kind, value):
    q, k, v, _ = inputs(attn.Softmax())
    with pytest.raises(kind, match=name):
        attn.dot_product_attention(q, k, v, **{name: value})


def test_the_definition_refuses_a_cap_that_is_none():
    x = jnp.ones((1, 2, 1, 3))
    for wrong in (0, -1.0, "2"):
        with pytest.raises(ValueError, match="logit_cap: expected a positive number or None"):
            attn.dense_attention(x, x, x, mask=attn.FULL, logit_cap=wrong)
        with pytest.raises(ValueError, match="logit_cap: expected a positive number or None"):
            attn.dense_weights(x, x, mask=attn.FULL, logit_cap=wrong)
    with pytest.raises(ValueError, match=r"or None, got Array\(3\."):  # not "got 3.0"
        attn.dense_attention(x, x, x, mask=attn.FULL, logit_cap=jnp.float32(3))
    with pytest.raises(ValueError, match=r"or 'learned', got Array\(3\."):
        attn.Softmax(temperature=jnp.float32(3))


def test_units_of_large_vectors_are_not_zero():
    x = jax.random.normal(jax.random.key(0), (3, 8))
    for unit in (attn.dense.dot_product.unit, lambda x: attn.linearized.feature_maps.unit(x)[0]):
        for much in (1e12, 1e20, 1e30, 1e38):  # beside which 1e-6 is nothing
            np.testing.assert_allclose(unit(x * much), unit(x * 1e6), rtol=1e-5)
        slope = jax.grad(lambda x: unit(x).sum())(x * 1e20)
        np.testing.assert_allclose(
            slope * 1e20, jax.grad(lambda x: unit(x).sum())(x * 1e6) * 1e6, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("T", [19, 300])
def test_a_row_of_one_key_sends_exactly_nothing_to_its_scores(T):
    """The mean over one weight is what it is taken from, bit by bit: where rows see few keys, what
    is left of the difference would else be rounding (70 eps of a gradient, of 64 allowed)."""
    q, k, v = (
        jax.random.normal(key, (2, T, 4, 7)) for key in jax.random.split(jax.random.key(0), 3)
    )
    loss = lambda *x: jnp.sin(attn.dot_product_attention(*x, mask=attn.Window(0, 0))).sum()
    dq, dk, dv = jax.jit(jax.grad(loss, (0, 1, 2)))(8 * q, k, v)
    assert not dq.any()
    assert not dk.any()
    np.testing.assert_allclose(dv, jnp.cos(v), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(
    ("T", "mask"),
    [
        (200, Causal()),
        pytest.param(400, Causal(), marks=pytest.mark.slow),
        pytest.param(300, attn.Window(20, 0), marks=pytest.mark.slow),
        pytest.param(700, attn.Window(20, 0), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients_of_wide_heads_are_as_near_as_the_definitions(T, mask):
    """Scores that are made again round otherwise than in the forward pass, and were divided by
    that pass's sums: up to 90 eps of a gradient, and 8 where its own sums divide them."""
    q, k, v, d = (
        jax.random.normal(key, (1, T, 1, 128)) for key in jax.random.split(jax.random.key(0), 4)
    )

    def gradients(arrays, implementation):
        *arrays, d = arrays
        attend = functools.partial(
            attn.dot_product_attention, mask=mask, implementation=implementation
        )
        return jax.jit(jax.grad(lambda *x: (attend(*x) * d).sum(), (0, 1, 2)))(*arrays)

    with jax.default_matmul_precision("highest"):
        near, defined = (gradients((8 * q, k, v, d), form) for form in (None, "materialized"))
    with jax.enable_x64(True):
        exact = gradients(widen((8 * q, k, v, d)), "materialized")
        exact = jax.tree.map(np.asarray, exact)
    off = lambda got: [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(got, exact)]
    for mine, its in zip(off(near), off(defined)):
        assert mine < 2 * its


@pytest.mark.parametrize(("T", "block"), [(300, None), (700, None), (300, 64)])
def test_finite_scores_of_any_size_have_finite_gradients(T, block):
    """A score that rounded to more than its row's largest had an infinite weight."""
    q, k, v = (
        jax.random.normal(key, (1, T, 1, 64)) for key in jax.random.split(jax.random.key(0), 3)
    )
    mask = attn.Window(20, 0)
    loss = lambda *x: attn.dot_product_attention(*x, mask=mask, block=block).sum()
    found = jax.jit(jax.grad(loss, (0, 1, 2)))(1e6 * q, 1e6 * k, v)
    assert all(np.isfinite(x).all() for x in found)
    # each query has a largest key, whose value is all that it gives
    np.testing.assert_allclose(found[2].sum((0, 1)), np.full((1, 64), T), rtol=1e-3)


@pytest.mark.parametrize("T", [19, 600])
def test_the_largest_values_behind_padding_reach_no_gradient(T):
    """do . v overflows there, and 0 * inf is NaN."""
    q, k, v, _ = inputs(attn.Softmax(), T=T, S=T)
    mask = Padding(jnp.array([T - 3, T]))
    large = v.at[0, T - 3 :].set(jnp.finfo(v.dtype).max)
    loss = lambda *x: 8 * jnp.sin(attn.dot_product_attention(*x, mask=mask)).sum()
    got, want = (jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v) for v in (large, v))
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
