"""RWKV-7's layer against the paper's equations, token after token (arXiv:2503.14456, section 4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import run, steps_go_on

from attn import RWKV7, Causal
from attn.nn import Attention

N, H, W, T = 3, 4, 12, 9
RNG = np.random.default_rng(3)
X = jnp.asarray(RNG.normal(size=(2, T, W)), jnp.float32)


class Convolved(RWKV7):
    short_conv = 3


def layer(K=N, **settings):
    sizes = dict(num_heads=N, num_kv_heads=K, max_length=T, mechanism=RWKV7(chunk=4, **settings))
    a = Attention(W, **sizes, key=jax.random.key(2))
    # away from where training starts: a low rank starts at 0 and all weights of a bonus are alike
    draw = lambda x: jnp.asarray(RNG.normal(size=x.shape) * 0.5, x.dtype)
    graph, params = nnx.split(a)
    return nnx.merge(graph, jax.tree.map(draw, params))


def start(**how):
    return Attention(W, num_heads=N, max_length=T, mechanism=RWKV7(**how), key=jax.random.key(0))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def paper(a, x, K, first=None):
    """One sequence x [T, W] in float64, `first` [T, K, H] the values of the first layer."""
    of = lambda param: np.asarray(param[...], np.float64)
    x = np.asarray(x, np.float64)
    gate = lambda name: {key: of(p) for key, p in a.gates.projections[name].items()}
    mixed = {}
    for name, mu in a.token_shift.mu.items():
        before = np.concatenate([np.zeros((1, W)), x[:-1]])
        mixed[name] = x + (before - x) * of(mu)
    w, rate = gate("log_decay"), gate("a")
    heads = lambda x, n: np.repeat(x.reshape(len(x), n, H), N // n, axis=1)
    kernels = np.split(of(a.qkv), (N * H, (N + K) * H), axis=-1)
    r, k, v = (mixed[name] @ kernel for name, kernel in zip("qkv", kernels))
    if first is not None:
        nu = {key: of(p) for key, p in a.blend.projections["v"].items()}
        nu = sigmoid(mixed["v"] @ nu["down"] @ nu["up"] + nu["bias"])
        v = v + (np.asarray(first, np.float64).reshape(v.shape) - v) * nu
    r, k, v = heads(r, N), heads(k, K), heads(v, K)
    decay = np.tanh(mixed["log_decay"] @ w["down"]) @ w["up"] + w["bias"]
    decay = heads(np.exp(-np.exp(-0.5) * sigmoid(decay)), N)
    rate = heads(sigmoid(mixed["a"] @ rate["down"] @ rate["up"] + rate["bias"]), N)
    removal = k * of(a.learned["k_k"])
    removal /= np.linalg.norm(removal, axis=-1, keepdims=True)
    k = k * (1 + (rate - 1) * of(a.learned["k_a"]))
    out = np.zeros((len(x), N, H))
    for n in range(N):
        S = np.zeros((H, H))  # values by keys
        for t in range(len(x)):
            kappa = removal[t, n]
            S = (
                S * decay[t, n]
                - np.outer(S @ kappa, rate[t, n] * kappa)
                + np.outer(v[t, n], k[t, n])
            )
            p = S @ r[t, n]
            p = (p - p.mean()) / np.sqrt(p.var() + 1e-5 * H)
            p = p * of(a.head_norm.scale)[n] + of(a.head_norm.bias)[n]
            out[t, n] = p + (r[t, n] * of(a.bonus)[n] * k[t, n]).sum() * v[t, n]
    g = {name: of(p) for name, p in a.out_gate.projections["output_gate"].items()}
    return (out.reshape(len(x), -1) * (sigmoid(mixed["output_gate"] @ g["down"]) @ g["up"])) @ of(
        a.out
    )


@pytest.mark.parametrize("K", [N, 1])
def test_the_layer_is_the_papers(K):
    a = layer(K)
    graph, params = nnx.split(a)
    y = jax.jit(lambda x: nnx.merge(graph, params)(x, mask=Causal()))(X)
    want = [paper(a, x, K) for x in X]
    np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-4)


def test_deeper_layers_take_a_share_of_the_first_layers_values():
    a, K = layer(1), 1
    first = jnp.asarray(RNG.normal(size=(2, T, K, H)), jnp.float32)
    y = run(a, X, mask=Causal(), first_values=first)
    want = [paper(a, x, K, v) for x, v in zip(X, first)]
    np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-4)
    with pytest.raises(
        ValueError, match=r"^first_values: expected \[2, 9, 1, 4\], as .*\[2, 8, 1, 4\]"
    ):
        a(X, mask=Causal(), first_values=first[:, 1:])
    own = run(a, X, method="values", mask=Causal())
    np.testing.assert_allclose(
        run(a, X, mask=Causal(), first_values=own), run(a, X, mask=Causal()), rtol=1e-5, atol=1e-5
    )


def test_shares_start_as_the_authors_code_does_and_can_be_left_out():
    projections = layer().blend.projections["v"]
    assert {name: x.shape for name, x in projections.items()} == {
        "down": (W, 32),
        "up": (32, N * H),
        "bias": (N * H,),
    }
    bias = start().blend.projections["v"]["bias"][...]
    np.testing.assert_allclose(bias, 0.73 - 0.4 * (np.arange(N * H) / (N * H - 1) - 0.5), rtol=1e-6)
    wrong = r"^short_conv: expected 0 with Convolved's blending, got 3$"
    with pytest.raises(ValueError, match=wrong):
        Attention(W, num_heads=N, max_length=T, mechanism=Convolved(), key=jax.random.key(0))
    bare, rest = start(value_residual=False), nnx.state(start())
    del rest["blend"]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(bare), rest)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_each_layer_starts_as_published(layer):
    """As BlinkDL/RWKV-LM, RWKV-v7/train_temp/src/model.py starts its Tmix_x070 of `layer` of 3."""
    assert RWKV7.for_layers(3)[layer] == RWKV7(layer=layer, layers=3)
    a, C = start(layer=layer, layers=3), N * H
    powers = {"q": 0.2, "log_decay": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "output_gate": 0.2}
    assert a.token_shift.mu.keys() == powers.keys()
    for name, power in powers.items():
        mu = [1 - (c / W) ** (power * (1 - layer / 3)) for c in range(W)]
        np.testing.assert_allclose(a.token_shift.mu[name][...], mu, rtol=1e-5, atol=1e-6)
    w, rate = np.empty(C), np.empty(C)
    for n in range(C):
        zigzag = ((n % H) - (H - 1) / 2) / ((H - 1) / 2)
        zigzag *= abs(zigzag)
        w[n] = -6 + 6 * (n / (C - 1)) ** (1 + (layer / 2) ** 0.3) + 0.5 + 2.5 * zigzag
        rate[n] = -0.19 + 0.3 * zigzag + 0.4 * (n / (C - 1) - 0.5)
    for name, want in (("log_decay", w), ("a", rate)):
        got = a.gates.projections[name]["bias"][...]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.head_norm.scale[...], ((1 + layer) / 3) ** 0.7, rtol=1e-6)


def test_steps_go_on_where_the_prompt_ends():
    steps_go_on(layer(), X, prompt=4, near=dict(rtol=1e-4, atol=1e-4))


def test_it_starts_where_it_is_told_and_can_be_left_out():
    np.testing.assert_array_equal(start().bonus[...], np.full((N, H), -0.04, np.float32))
    bare = start(bonus=None)
    assert bare.bonus is None
    rest = nnx.state(start())
    del rest["bonus"]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(bare), rest)
    for value in ("0.1", float("nan"), True):
        with pytest.raises(ValueError, match=f"^bonus: expected a finite number, .* {value!r}$"):
            RWKV7(bonus=value)
