"""Layers whose output stage is not that of the others, token after token as the authors' codes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn import HGRN2, KDA, RWKV7, Causal, Lightning, Mamba2
from attn.nn import Attention

N, K, H, W, T = 4, 2, 3, 10, 7
RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.normal(size=(2, T, W)), jnp.float32)
silu = lambda x: x / (1 + np.exp(-x))
sigmoid = lambda x: 1 / (1 + np.exp(-x))
of = lambda param: np.asarray(param[...], np.float64)
at_once = nnx.jit(lambda a, x: a(x, mask=Causal()))


def layer(mechanism):
    sizes = dict(num_heads=N, num_kv_heads=K, head_dim=H, max_length=T, mechanism=mechanism)
    a = Attention(W, **sizes, key=jax.random.key(2))
    # away from where training starts: ones and zeros would hide much
    graph, params = nnx.split(a)
    moved = lambda x: x + jnp.asarray(RNG.normal(size=x.shape) * 0.3, x.dtype)
    return nnx.merge(graph, jax.tree.map(moved, params))


def mamba2(a, x):
    """One sequence by state-spaces/mamba: convolution with a bias, recurrence, skip, gate, norm."""
    qkv, kernel, bias = x @ of(a.qkv), of(a.short_conv.kernel), of(a.short_conv.bias)
    rows = [sum(kernel[j] * qkv[t - j] for j in range(4) if j <= t) + bias for t in range(len(x))]
    C, B, v = np.split(silu(np.stack(rows)), (N * H, (N + K) * H), -1)
    C, B, v = (np.repeat(y.reshape(T, -1, H), N * H // y.shape[-1], 1) for y in (C, B, v))
    gate = {name: of(p) for name, p in a.gates.projections["dt"].items()}
    dt = np.log1p(np.exp(x @ gate["kernel"] + gate["bias"]))
    A, d = -np.exp(of(a.learned["a_log"])), of(a.learned["d"])
    y, S = np.zeros((T, N, H)), np.zeros((N, H, H))
    for t in range(T):
        written = dt[t, :, None, None] * B[t, :, :, None] * v[t, :, None]
        S = np.exp(A * dt[t])[:, None, None] * S + written
        y[t] = np.einsum("nh,nhd->nd", C[t], S) + d[:, None] * v[t]
    y = y.reshape(T, -1) * silu(x @ of(a.out_gate))
    y = y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) * of(a.head_norm.scale)
    return y @ of(a.out)


def test_mamba2_gates_first_and_norms_all_heads_together():
    a = layer(Mamba2(chunk=4))
    want = [mamba2(a, np.asarray(x, np.float64)) for x in X]
    np.testing.assert_allclose(at_once(a, X), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", [HGRN2, Lightning])
def test_some_norm_all_heads_together_before_the_gate(kind):
    a = layer(kind(chunk=4))
    assert a.head_norm.scale.shape == (N * H,)
    q, k, v = np.split(np.asarray(X, np.float64) @ of(a.qkv), (N * H, (N + K) * H), -1)
    heads = lambda y, n: jnp.asarray(y.reshape(2, T, n, H), jnp.float32)
    y = kind(chunk=4)(heads(q, N), heads(k, K), heads(v, K), mask=Causal())
    y = np.asarray(y, np.float64).reshape(2, T, N * H)
    y = y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) * of(a.head_norm.scale)
    gate = 1 if a.out_gate is None else sigmoid(np.asarray(X, np.float64) @ of(a.out_gate))
    np.testing.assert_allclose(at_once(a, X), (y * gate) @ of(a.out), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", [Mamba2, HGRN2, Lightning])
@pytest.mark.parametrize("shape", [(0, T, W), (2, 0, W)])
def test_no_rows_and_no_tokens_are_normed_too(kind, shape):
    """ZeroDivisionError: jax cannot tell how many -1 are where there are none."""
    made = layer(kind())
    assert jax.eval_shape(lambda x: made(x, mask=Causal()), jnp.zeros(shape)).shape == shape


def test_kdas_gate_is_of_low_rank_and_has_a_bias():
    a = layer(KDA(chunk=4))
    g = {name: of(p) for name, p in a.out_gate.projections["output_gate"].items()}
    assert g["down"].shape == (W, H)
    want = sigmoid(np.asarray(X, np.float64) @ g["down"] @ g["up"] + g["bias"])
    np.testing.assert_allclose(a._gating(X), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", [Mamba2(chunk=4), KDA(chunk=4)], ids=lambda m: m.name)
def test_steps_go_on_where_the_prompt_ends(mechanism):
    a = layer(mechanism)
    state, y = a.prefill(X[:, :4], max_length=T)
    rows = [y]
    for t in range(4, T):
        state, y = a.step(state, X[:, t : t + 1])
        rows.append(y)
    np.testing.assert_allclose(jnp.concatenate(rows, 1), at_once(a, X), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Mamba2, KDA, RWKV7])
def test_each_can_be_left_out(kind):
    plain = layer(kind(output_gate=None, output_norm=False))
    assert plain.out_gate is None
    assert plain.head_norm is None
    one, other = (layer(kind(output_gate=name)) for name in ("silu", "sigmoid"))
    nnx.update(one, nnx.state(other))
    assert not np.allclose(at_once(one, X), at_once(other, X))
