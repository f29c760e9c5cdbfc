"""Heads with their weights: fused products against a loop over heads, and pooled heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import FULL, Alibi, Causal, Padding
from attn.positions import alibi_slopes

B, T, S, W, C, N, H, D = 2, 9, 7, 10, 12, 4, 6, 5
NEAR = dict(rtol=2e-5, atol=2e-5)
RNG = np.random.default_rng(0)


def draw(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.normal(size=shape) / np.sqrt(shape[0]), dtype)


def weights(K=N, width=W):
    return draw(W, N * H), draw(width, K * H), draw(width, K * D), draw(N * D, W)


X, CONTEXT = draw(B, T, W) * 3, draw(B, S, C) * 3
LENGTHS = jnp.array([4, 9])


def test_one_head_is_its_equation():
    wq, wk, wv, wo = draw(W, H), draw(W, H), draw(W, D), draw(D, W)
    s = jnp.einsum("bth,bsh->bts", X @ wq, X @ wk) / np.sqrt(H)
    want = jax.nn.softmax(s) @ (X @ wv) @ wo
    np.testing.assert_allclose(attn.single_head(X, wq, wk, wv, wo), want, **NEAR)


CASES = {
    "full": (N, None, FULL, None),
    "grouped, causal": (2, None, Causal(), None),
    "one key head, padded, ALiBi": (1, None, Padding(LENGTHS), "alibi"),
    "cross, grouped, array bias": (2, CONTEXT, FULL, "array"),
    "causal, one bias for all heads": (N, None, Causal(), "shared"),
}
BIASES = {
    None: None,
    "alibi": Alibi(jnp.asarray(alibi_slopes(N))),
    "array": draw(B, N, T, S),
    "shared": draw(1, 1, T, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_fused_heads_equal_a_loop_over_heads(case):
    K, context, mask, bias = CASES[case]
    w = weights(K, W if context is None else C)
    given = {"num_heads": N, "num_kv_heads": K, "context": context, "mask": mask}

    def loss(f, w, x, bias):
        y = f(x, *w, bias=bias, **given)
        return (y * jnp.sin(jnp.arange(y.size)).reshape(y.shape)).sum(), y

    results = [
        jax.jit(jax.value_and_grad(functools.partial(loss, f), (0, 1, 2), has_aux=True))(
            w, X, BIASES[bias]
        )
        for f in (attn.multi_head, attn.multi_head_by_head)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **NEAR), *results)


def test_the_loop_over_heads_takes_a_narrow_bias_as_all_heads_at_once_do():
    """Its distances were in bfloat16, which has no whole numbers above 256 but some."""
    w, x = weights(), draw(B, 300, W) * 3
    given = dict(
        num_heads=N, bias=Alibi(jnp.full(N, 0.125, jnp.bfloat16)), mask=~attn.Window(280, 280)
    )
    want = attn.multi_head(x, *w, **given)
    np.testing.assert_allclose(attn.multi_head_by_head(x, *w, **given), want, **NEAR)


def test_each_projection_is_one_product():
    run = functools.partial(attn.multi_head, num_heads=N, attend=lambda q, k, v, **_: v)
    assert str(jax.make_jaxpr(run)(X, *weights())).count("dot_general") == 4


def test_attend_is_any_function():
    attend = functools.partial(attn.window_attention, left=2, right=0)
    w = weights(2)
    given = {"num_heads": N, "num_kv_heads": 2, "attend": attend}
    fused = attn.multi_head(X, *w, **given)
    np.testing.assert_allclose(fused, attn.multi_head_by_head(X, *w, **given), **NEAR)
    mask = Causal() & attn.Window(2, 0)
    want = attn.multi_head(X, *w, num_heads=N, num_kv_heads=2, mask=mask)
    np.testing.assert_allclose(fused, want, **NEAR)


SIZES = dict(num_heads=N, num_kv_heads=N, head_dim=H)


def learns_nothing(m):
    make = functools.partial(m.init, **SIZES, value_dim=D, max_length=T)
    return not jax.eval_shape(make, jax.random.key(0)) and not m.gates(**SIZES)


PLAIN = {
    f"{name} {n}": m
    for name, kind in attn.MECHANISMS.items()
    for n, m in enumerate(kind.examples())
    if learns_nothing(m)
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * m.heads_alike) for n, m in PLAIN.items()]
)
def test_heads_that_are_alike_say_so(name):
    m = PLAIN[name]
    q, k, v, _ = attn.testing.inputs(m, T=12, S=12, N=3, K=3)
    mask = Causal() if Causal in m.requires else FULL

    @jax.jit
    def both(q, k, v):
        alone = [m(*(x[:, :, n : n + 1] for x in (q, k, v)), mask=mask) for n in range(3)]
        return m(q, k, v, mask=mask), jnp.concatenate(alone, 2)

    assert np.allclose(*both(q, k, v), rtol=2e-5, atol=2e-5) == m.heads_alike


@pytest.mark.parametrize(
    "attend",
    [
        attn.Retention(),
        attn.Lightning(),
        attn.lightning_attention,
        functools.partial(functools.partial(attn.retention_attention), chunk=4),
        functools.partial(attn.strided_attention, stride=3, heads="alternating"),
        functools.partial(functools.partial(attn.fixed_attention, heads="alternating"), summary=2),
        attn.dilated_attention,
        functools.partial(attn.dilated_attention, segments=(4, 8), rates=(1, 2)),
        functools.partial(attn.block_sparse_attention, pattern=(attn.Window(1, 1), attn.Causal())),
        attn.BlockSparse(masks=(attn.Window(1, 0), attn.Window(9, 0))),
        attn.StridedPattern(heads="alternating"),
        attn.FixedPattern(heads="alternating"),
        attn.DilatedSegments(segments=(4, 8), rates=(1, 4)),
        attn.TalkingHeads(),
        functools.partial(attn.TalkingHeads(), logit_mixing=jnp.eye(N), weight_mixing=jnp.eye(N)),
        functools.partial(attn.Softmax(dropout_rate=0.5), dropout_key=jax.random.key(0)),
        functools.partial(
            attn.window_attention, left=3, right=0, dropout_rate=0.5, dropout_key=jax.random.key(0)
        ),
    ],
)
def test_heads_that_are_not_alike_have_no_loop(attend):
    with pytest.raises(NotImplementedError, match=r"attend: .* use multi_head"):
        attn.multi_head_by_head(X, *weights(), num_heads=N, attend=attend)


@pytest.mark.parametrize(
    "attend",
    [
        functools.partial(attn.strided_attention, stride=3),
        functools.partial(
            functools.partial(attn.fixed_attention, heads="alternating"), heads="merged"
        ),
        functools.partial(attn.dilated_attention, segments=(4, 8), rates=(1, 1), mask=FULL),
        functools.partial(attn.block_sparse_attention, pattern=[attn.Window(1, 1)] * 2),
        functools.partial(attn.Softmax(), dropout_key=jax.random.key(0)),
    ],
)
def test_settings_that_make_heads_alike_have_a_loop(attend):
    w, given = weights(), {"num_heads": N, "attend": attend}
    fused = attn.multi_head(X, *w, **given)
    np.testing.assert_allclose(fused, attn.multi_head_by_head(X, *w, **given), **NEAR)


def test_any_leading_axes_and_dtype():
    w = [x.astype(jnp.bfloat16) for x in weights()]
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for f in (attn.multi_head, attn.multi_head_by_head):
            y = f(X.astype(jnp.bfloat16)[None], *w, num_heads=N)
            assert (y.shape, y.dtype) == ((1, B, T, W), jnp.bfloat16)


@pytest.mark.parametrize("f", [attn.multi_head, attn.multi_head_by_head])
def test_mistakes_are_named(f):
    wq, wk, wv, wo = weights()
    wrong = {
        r"num_kv_heads: expected a divisor of num_heads 4, got 3": dict(num_kv_heads=3),
        r"num_heads: expected an integer": dict(num_heads=0),
        r"wq: expected 10 rows, the width of x, got \[9, 24\]": dict(wq=wq[:9]),
        r"wq: expected columns for 4 heads, got \[10, 23\]": dict(wq=wq[:, :23]),
        r"wk: expected 24 columns, 4 heads of width 6": dict(wk=wk[:, :20]),
        r"wk: expected 12 rows, the width of context": dict(context=CONTEXT),
        r"wv: expected 2 axes, got \[2, 10, 20\]": dict(wv=jnp.stack([wv, wv])),
        r"wo: expected 20 rows, 4 heads of width 5": dict(wo=wo[:19]),
        r"wo: expected 10 columns, the width of x": dict(wo=wo[:, :9]),
        r"x: expected at least 2 axes": dict(x=X[0, 0]),
        r"context: expected \[2, 'S', 'C'\]": dict(context=CONTEXT[:1]),
    }
    good = dict(x=X, wq=wq, wk=wk, wv=wv, wo=wo, num_heads=N)
    for message, change in wrong.items():
        with pytest.raises(ValueError, match=message):
            f(**{**good, **change})
    for message, change in {
        "wv: expected x's dtype float32, got bfloat16": dict(wv=wv.astype(jnp.bfloat16)),
        "x: expected a float array, got int32": dict(x=X.astype(int)),
        "wo: expected a float array, got list": dict(wo=[1.0]),
    }.items():
        with pytest.raises(TypeError, match=message):
            f(**{**good, **change})


def test_pooling_is_the_mean_of_neighbouring_heads():
    kernel = draw(3, W, 6 * H)
    heads = np.asarray(kernel).reshape(3, W, 6, H)
    want = np.concatenate([heads[:, :, :3].mean(2), heads[:, :, 3:].mean(2)], -1)
    got = attn.pool_heads(kernel, num_heads=6, groups=2)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(attn.pool_heads(kernel, num_heads=6, groups=6), kernel)


def test_pooling_identical_heads_changes_nothing():
    wq, wk, wv, wo = weights(2)
    repeat = lambda w: jnp.repeat(w.reshape(W, 2, -1), 2, axis=1).reshape(W, -1)
    want = attn.multi_head(X, wq, repeat(wk), repeat(wv), wo, num_heads=N)
    pooled = [attn.pool_heads(repeat(w), num_heads=4, groups=2) for w in (wk, wv)]
    got = attn.multi_head(X, wq, *pooled, wo, num_heads=N, num_kv_heads=2)
    np.testing.assert_allclose(got, want, **NEAR)


def test_pooling_that_does_not_divide_is_named():
    with pytest.raises(ValueError, match="groups: expected a divisor of num_heads 4, got 3"):
        attn.pool_heads(draw(W, 4 * H), num_heads=4, groups=3)
    with pytest.raises(ValueError, match="num_heads: expected a divisor of kernel's width 24"):
        attn.pool_heads(draw(W, 4 * H), num_heads=5, groups=1)
    with pytest.raises(ValueError, match="groups: expected an integer"):
        attn.pool_heads(draw(W, 4 * H), num_heads=4, groups=0)
    with pytest.raises(TypeError, match="kernel: expected an array of floats, got list"):
        attn.pool_heads([[1.0, 2.0]], num_heads=2, groups=1)


@pytest.mark.filterwarnings("error")
def test_numpy_arrays_of_float64_are_float32_in_every_form():
    x, w = np.eye(4, 6), np.eye(6)
    for form in (attn.multi_head, attn.multi_head_by_head):
        assert form(x, w, w, jnp.asarray(w), w, num_heads=2).dtype == jnp.float32
