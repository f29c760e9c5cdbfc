"""RWKV-6's layer against the paper's equations, token after token (arXiv:2404.05892, section 4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import build, run, steps_go_on

from attn import RWKV6, Causal, Padding, Segments
from attn.nn import Attention

N, H, W, T = 3, 4, 12, 9
RNG = np.random.default_rng(3)
X = jnp.asarray(RNG.normal(size=(2, T, W)), jnp.float32)
NEAR = dict(rtol=2e-4, atol=2e-4)
IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2], [5, 5, 1, 1, 1, 1, 7, 7, 7]], np.int32)


def layer(K=N, **settings):
    a = start(num_kv_heads=K, mechanism=RWKV6(chunk=4, **settings))
    # away from where training starts: the networks of the shares start at 0
    draw = lambda x: jnp.asarray(RNG.normal(size=x.shape) * 0.5, x.dtype)
    graph, params = nnx.split(a)
    return nnx.merge(graph, jax.tree.map(draw, params))


def start(mechanism, **settings):
    sizes = dict(num_heads=N, max_length=T, mechanism=mechanism)
    return Attention(W, **sizes, **settings, key=jax.random.key(2))


def paper(a, x, K):
    """One sequence x [T, W] in float64."""
    of = lambda param: np.asarray(param[...], np.float64)
    x = np.asarray(x, np.float64)
    before = np.concatenate([np.zeros((1, W)), x[:-1]])
    lerp = lambda a, b, mu: a + (b - a) * mu
    shift = a.token_shift

    def ddlerp(name):
        A, B = of(shift.more[name]["down"]), of(shift.more[name]["up"])
        lora = of(shift.mu[name]) + np.tanh(lerp(x, before, of(shift.mu_x)) @ A) @ B
        return lerp(x, before, lora)

    heads = lambda x, n: np.repeat(x.reshape(len(x), n, H), N // n, axis=1)
    kernels = np.split(of(a.qkv), (N * H, (N + K) * H), axis=-1)
    r, k, v = (ddlerp(name) @ kernel for name, kernel in zip("qkv", kernels))
    r, k, v = heads(r, N), heads(k, K), heads(v, K)
    w = {key: of(p) for key, p in a.gates.projections["log_decay"].items()}
    d = w["bias"] + np.tanh(ddlerp("log_decay") @ w["down"]) @ w["up"]
    w, u, out = heads(np.exp(-np.exp(d)), N), of(a.learned["bonus"]), np.zeros((len(x), N, H))
    for n in range(N):
        S = np.zeros((H, H))  # keys by values
        for t in range(len(x)):
            kv = np.outer(k[t, n], v[t, n])
            p = r[t, n] @ (S + u[n][:, None] * kv)
            p = (p - p.mean()) / np.sqrt(p.var() + 1e-5 * H)
            out[t, n] = p * of(a.head_norm.scale)[n] + of(a.head_norm.bias)[n]
            S = w[t, n][:, None] * S + kv
    g = ddlerp("output_gate") @ of(a.out_gate)
    return (out.reshape(len(x), -1) * (g / (1 + np.exp(-g)))) @ of(a.out)


@pytest.mark.parametrize("K", [N, 1])
def test_the_layer_is_the_papers(K):
    a = layer(K)
    y = run(a, X, mask=Causal())
    np.testing.assert_allclose(y, [paper(a, x, K) for x in X], **NEAR)


def test_a_document_starts_after_zeros():
    a = layer()
    y = np.asarray(run(a, X, mask=Causal() & Segments(IDS, IDS)))
    for row, ids in enumerate(IDS):
        for piece in np.split(np.arange(T), np.flatnonzero(np.diff(ids)) + 1):
            alone = paper(a, X[row, piece], N)
            np.testing.assert_allclose(y[row, piece], alone, **NEAR)


def test_what_is_hidden_does_not_show_even_nan():
    a, real = layer(), np.arange(T) != np.array([[3], [5]])
    mask = Causal() & Padding(keys=real)
    y, again = (run(a, jnp.where(real[..., None], X, fill), mask=mask) for fill in (0, jnp.nan))
    np.testing.assert_array_equal(np.asarray(again)[real], np.asarray(y)[real])


def test_steps_go_on_where_the_prompt_ends():
    steps_go_on(layer(), X, prompt=4, near=NEAR)


def test_it_starts_as_published_and_can_be_left_out():
    shift = start(RWKV6()).token_shift
    published = {"q": 0.5, "k": 1.0, "v": 1.0, "log_decay": 1.0, "output_gate": 0.5}
    assert shift.mu.keys() == shift.more.keys() == published.keys()
    for name, power in published.items():
        mu = 1 - (np.arange(W) / W) ** power
        np.testing.assert_allclose(shift.mu[name][...], mu, rtol=1e-5)
        np.testing.assert_array_equal(shift.share(name, X, X * 0)[0, 0], shift.mu[name][...])
        assert shift.more[name]["down"].shape == (W, 32)
        assert 0 < np.abs(shift.more[name]["up"][...]).max() <= 0.01
    np.testing.assert_allclose(shift.mu_x[...], 1 - np.arange(W) / W, rtol=1e-6)
    rest = nnx.state(start(RWKV6()))
    del rest["token_shift"]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(start(RWKV6(token_shift=False))), rest)
    assert "output_gate" not in start(RWKV6(output_gate=None)).token_shift.mu


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_each_layer_starts_as_published(layer):
    """As BlinkDL/RWKV-LM, RWKV-v5/src/model.py starts its Tmix_x060 of layer `layer` of 3."""
    form = RWKV6.for_layers(3, chunk=4)[layer]
    assert form == RWKV6(chunk=4, layer=layer, layers=3)
    a, up, left, C = start(form), layer / 2, 1 - layer / 3, N * H
    mu = {name: np.empty(W) for name in ("q", "k", "v", "log_decay", "output_gate")}
    for c in range(W):
        whole = (c / W) ** left
        mu["k"][c] = mu["log_decay"][c] = 1 - whole
        mu["v"][c] = 1 - (whole + 0.3 * up)
        mu["q"][c] = mu["output_gate"][c] = 1 - (c / W) ** (0.5 * left)
    for name, want in mu.items():
        np.testing.assert_allclose(a.token_shift.mu[name][...], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.token_shift.mu_x[...], mu["k"], rtol=1e-5, atol=1e-6)
    decay = [-6 + 5 * (n / (C - 1)) ** (0.7 + 1.3 * up) for n in range(C)]
    bias = a.gates.projections["log_decay"]["bias"][...]
    np.testing.assert_allclose(bias, decay, rtol=1e-5, atol=1e-6)
    bonus = [up * (1 - n / (C - 1)) + ((n + 1) % 3 - 1) * 0.1 for n in range(C)]
    np.testing.assert_allclose(a.learned["bonus"][...].ravel(), bonus, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.head_norm.scale[...], ((1 + layer) / 3) ** 0.7, rtol=1e-6)


@pytest.mark.slow
def test_every_form_of_depth_is_the_same_encoder():
    settings = dict(mechanism=RWKV6(chunk=4), head="token", pooling="none", positions="none")
    tokens = jnp.asarray(RNG.integers(0, 11, (3, 6)), jnp.int32)
    y = run(build(**settings, layers=2), tokens, mask=Causal())
    again = run(build(**settings, layers=2, scan=True), tokens, mask=Causal())
    np.testing.assert_allclose(again, y, rtol=1e-4, atol=1e-5)
