"""References against a second, independent definition: NumPy loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import attn
from attn import Causal, Padding, Segments
from attn.testing import inputs, rms

T, S = 9, 12
LENGTHS = np.array([7, 12])
RUNS = np.array([[0, 1, 0, 1, 2, 2, 2, 0, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0]])
KEY_RUNS = np.concatenate([RUNS, [[0, 1, 2], [0, 0, 3]]], 1)


def seen(b, *, causal=False, padding=False, segments=False):
    i, j = np.arange(T)[:, None], np.arange(S)[None, :]
    out = np.ones((T, S), bool)
    if causal:
        out &= j <= i
    if padding:
        out &= j < LENGTHS[b]
    if segments:
        out &= RUNS[b][:, None] == KEY_RUNS[b][None, :]
    return out


def mask(*, causal=False, padding=False, segments=False):
    out = Causal() if causal else attn.FULL
    if padding:
        out &= Padding(jnp.asarray(LENGTHS))
    if segments:
        out &= Segments(jnp.asarray(RUNS), jnp.asarray(KEY_RUNS))
    return out


def tokens(mechanism):
    q, k, v, learned = inputs(mechanism, T=T, S=S, scale=2.0)
    return q, k, v, learned, [np.asarray(x, np.float64) for x in (q, k, v)]


def same(mechanism, define, **terms):
    q, k, v, learned, (a, b, c) = tokens(mechanism)
    want = np.stack([define(a[r], b[r], c[r], seen(r, **terms)) for r in range(2)])
    for form in (mechanism, mechanism.reference):
        got = np.asarray(jax.jit(form)(q, k, v, mask=mask(**terms), **learned), np.float64)
        assert rms(got - want) / rms(want) < 32 * 2**-23


COMBINATIONS = [
    {},
    {"causal": True},
    {"padding": True},
    {"segments": True},
    {"causal": True, "padding": True, "segments": True},
]


@pytest.mark.parametrize("terms", COMBINATIONS, ids=str)
@pytest.mark.parametrize("mechanism", attn.Softmax.examples(), ids=repr)
def test_softmax(mechanism, terms):
    given = {
        "logit_cap": mechanism.logit_cap,
        "sinks": np.zeros(4) if mechanism.sinks else None,
        "temperature": 1.0 if mechanism.temperature == "learned" else mechanism.temperature,
        "qk_norm": mechanism.qk_norm,
    }
    same(mechanism, lambda q, k, v, m: oracle.softmax(q, k, v, m, **given), **terms)


@pytest.mark.parametrize("terms", COMBINATIONS, ids=str)
def test_linear(terms):
    define = lambda q, k, v, m: oracle.linear(q, k, v, m, oracle.elu_plus_one)
    same(attn.Linear(chunk=4), define, **terms)


@pytest.mark.parametrize("terms", COMBINATIONS, ids=str)
def test_performer(terms):
    mechanism = attn.Performer(features=6, chunk=4)
    phi = oracle.positive_features(np.asarray(mechanism.projection(8), np.float64))
    same(mechanism, lambda q, k, v, m: oracle.linear(q, k, v, m, phi), **terms)


@pytest.mark.parametrize("terms", COMBINATIONS[:3], ids=str)
def test_window(terms):
    near = oracle.window(T, S, 3, 1)
    mechanism = attn.SlidingWindow(left=3, right=1)
    same(mechanism, lambda q, k, v, m: oracle.softmax(q, k, v, m & near), **terms)


@pytest.mark.parametrize("terms", COMBINATIONS[:3], ids=str)
def test_bigbird(terms):
    mechanism = attn.BigBird(block_size=3, window=0, global_blocks=1, random=1)
    pattern = np.zeros((T, S), bool)
    for i in range(T):
        for j in range(S):
            a, b = i // 3, j // 3
            pattern[i, j] = a == b or a == 0 or b == 0
    drawn = attn.Random(1, 1, 0).array(3, 4)
    pattern |= np.repeat(np.repeat(drawn, 3, 0), 3, 1)
    assert (mechanism.patterns(T, S)[0].array(T, S) == pattern).all()
    same(mechanism, lambda q, k, v, m: oracle.softmax(q, k, v, m & pattern), **terms)


@pytest.mark.parametrize("padding", [False, True])
def test_linformer(padding):
    mechanism = attn.Linformer(features=5)
    _, _, _, learned, _ = tokens(mechanism)
    e, f = (
        np.asarray(learned[name], np.float64) for name in ("key_projection", "value_projection")
    )
    define = lambda q, k, v, m: oracle.linformer(q, k, v, e, f, m[0])
    same(mechanism, define, padding=padding)


def test_favor_is_unbiased_and_its_error_falls_as_one_over_root_m():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 16)) * 0.25  # larger, exp has tails that 200 draws do not show
    estimates = {
        m: [
            phi(x * 2) @ phi(y * 2)  # positive_features divides by 16^(1/4) = 2
            for phi in (
                oracle.positive_features(np.float64(attn.orthogonal_features(seed, m, 16)))
                for seed in range(200)
            )
        ]
        for m in (16, 256)
    }
    for m, found in estimates.items():
        assert abs(np.mean(found) / np.exp(x @ y) - 1) < 5 * np.std(found) / np.sqrt(len(found)), m
    assert 2.0 < np.std(estimates[16]) / np.std(estimates[256]) < 8.0


@pytest.mark.parametrize("sign", [1, -1])
def test_favor_is_unbiased_in_every_direction(sign):
    # along the diagonal, where the signs that LAPACK gives an orthogonal matrix would show
    H = 16
    x = sign * np.full(H, 0.5 / H**0.5)
    draw = jax.vmap(lambda key: attn.draw_features(key, H, H))
    rows = np.float64(draw(jax.random.split(jax.random.key(0), 5000)))
    estimates = np.mean(np.exp(rows @ (x + x) - x @ x), -1)
    error = np.std(estimates) / len(estimates) ** 0.5
    assert error < 0.01
    assert abs(np.mean(estimates) - np.exp(x @ x)) < 4 * error


def test_orthogonal_features_are_orthogonal_and_the_same_for_a_seed():
    w = attn.orthogonal_features(3, 20, 8)
    assert w.shape == (20, 8)
    gram = w[:8] @ w[:8].T
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-4
    assert (w == attn.orthogonal_features(3, 20, 8)).all()
    assert not (w == attn.orthogonal_features(4, 20, 8)).any()


@pytest.mark.parametrize("sign", [1, -1])
def test_features_of_seeds_are_unbiased_too(sign):
    x = sign * np.full(16, 0.5 / 4)
    rows = np.float64([attn.orthogonal_features(seed, 16, 16) for seed in range(5000)])
    estimates = np.mean(np.exp(rows @ (x + x) - x @ x), -1)
    error = np.std(estimates) / len(estimates) ** 0.5
    assert error < 0.01
    assert abs(np.mean(estimates) - np.exp(x @ x)) < 4 * error


IN_BOTH_WAYS = ({"implementation": "materialized"}, {"implementation": "blockwise", "block": 8})


def test_log_sum_exp_and_capped_scores_agree_between_implementations():
    q, k, v, _ = inputs(attn.Softmax())
    m = mask() & Padding(jnp.array([0, 5]))
    both = [
        attn.dot_product_attention(q, k, v, mask=m, logit_cap=2.0, return_lse=True, **how)
        for how in IN_BOTH_WAYS
    ]
    assert np.isneginf(both[0][1][0]).all()
    for a, b in zip(*both):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_lse_gradient_agrees_between_implementations():
    q, k, v, _ = inputs(attn.Softmax())

    def loss(q, k, how):
        lse = attn.dot_product_attention(q, k, v, mask=Causal(), return_lse=True, **how)[1]
        return (lse * jnp.arange(lse.size).reshape(lse.shape) / 100).sum()

    a, b = (
        jax.jit(jax.grad(functools.partial(loss, how=how), argnums=(0, 1)))(q, k)
        for how in IN_BOTH_WAYS
    )
    for x, y in zip(a, b):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_step_of_another_shape_than_the_cache_is_refused():
    # two tokens, or one key head into a cache of two, were written somewhere and gave nonsense
    q, k, v, _ = inputs(attn.Softmax(), T=2, S=2)
    for mechanism in (attn.Softmax(), attn.SlidingWindow(left=2, right=0)):
        sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
        state = mechanism.init_state((2,), max_length=5, **sizes)
        for bad in (slice(None), slice(None, 1)):
            heads = slice(None) if bad == slice(None) else slice(None, 1)
            with pytest.raises(ValueError, match="one token"):
                mechanism.step(state, q[:, bad], k[:, bad, heads], v[:, bad, heads])


def test_a_window_longer_than_max_length_decodes_right():
    # its ring was cut to max_length and forgot keys that the window still sees
    mechanism = attn.SlidingWindow(left=5, right=0)
    q, k, v, _ = inputs(mechanism, T=8, S=8)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 6}
    state = mechanism.init_state((2,), max_length=3, **sizes)
    want, step = jax.jit(mechanism.reference)(q, k, v, mask=Causal()), jax.jit(mechanism.step)
    for t in range(8):
        state, out = step(state, *(x[:, t : t + 1] for x in (q, k, v)))
        np.testing.assert_allclose(out, want[:, t : t + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", IN_BOTH_WAYS)
def test_an_infinite_visible_key_makes_its_queries_nan(how):
    # the blockwise gradient disagreed with its own forward pass
    q, k, v, _ = inputs(attn.Softmax())
    k = k.at[0, 3, 0, 0].set(jnp.inf)
    out = attn.dot_product_attention(q, k, v, mask=Causal(), **how)
    seen = np.zeros((2, 19, 4), bool)
    seen[0, 3:, :2] = True
    assert (np.isnan(out).all(-1) == seen).all()
