"""Gated and delta-rule variants against token loops typed from their papers; extreme gates."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import at_once

from attn import FULL, Causal, Padding
from attn.linearized.delta_net import DeltaNet
from attn.linearized.gated_delta_net import GatedDeltaNet
from attn.linearized.gla import GLA
from attn.linearized.hgrn2 import HGRN2, hgrn2_attention
from attn.linearized.kda import KDA
from attn.linearized.lightning import Lightning
from attn.linearized.mamba2 import Mamba2
from attn.linearized.retention import Retention
from attn.linearized.rwkv6 import RWKV6
from attn.linearized.rwkv7 import RWKV7
from attn.testing import assert_close, inputs
from attn.testing.cases import widen

# Each paper's recurrence for one head h of N: q, k [T, H], v [T, D], gates [T, ...], learned [...].
# `xp` is numpy, or jax.numpy where a gradient is wanted.


def outputs(xp, q, k, v, update, read=lambda S, S_next, t, q: S_next.T @ q):
    def token(S, t):
        S_next = update(S, t)
        return S_next, read(S, S_next, t, q[t])

    S, out = xp.zeros((k.shape[-1], v.shape[-1])), []
    if xp is jnp:  # the loop unrolled would take long to compile
        return jax.lax.scan(token, S, jnp.arange(len(q)))[1]
    for t in range(len(q)):
        S, one = token(S, t)
        out.append(one)
    return xp.stack(out)


def length_one(xp, x):
    return x / xp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def silu(xp, x):
    return x / (1 + xp.exp(-x))


def retention(xp, h, N, q, k, v):
    gamma = 1 - 2.0 ** (-5 - h)
    q = q / np.sqrt(q.shape[-1])
    return outputs(xp, q, k, v, lambda S, t: gamma * S + xp.outer(k[t], v[t]))


def lightning(xp, h, N, q, k, v, *, fraction=0.0):
    decay = np.exp(-8 * h / N * (1 - fraction))
    q, k = silu(xp, q), silu(xp, k)
    return outputs(xp, q, k, v, lambda S, t: decay * S + xp.outer(k[t], v[t]))


def gla(xp, h, N, q, k, v, log_decay):
    q, alpha = q / np.sqrt(q.shape[-1]), xp.exp(log_decay)
    return outputs(xp, q, k, v, lambda S, t: xp.diag(alpha[t]) @ S + xp.outer(k[t], v[t]))


def mamba2(xp, h, N, q, k, v, dt, a_log, d):
    A_bar = xp.exp(dt * -xp.exp(a_log))
    B_bar = dt[:, None] * k
    return outputs(xp, q, k, v, lambda S, t: A_bar[t] * S + xp.outer(B_bar[t], v[t])) + d * v


def hgrn2(xp, h, N, q, k, v, *, lower_bound=0.0):
    k = xp.clip(k, -300, 300)  # exp(1e4) is inf, and both ends are 0 or 1 already
    sigmoid, other = 1 / (1 + xp.exp(-k)), 1 / (1 + xp.exp(k))
    f, i = lower_bound + (1 - lower_bound) * sigmoid, (1 - lower_bound) * other
    q = silu(xp, q) / np.sqrt(q.shape[-1])
    return outputs(xp, q, k, v, lambda S, t: xp.diag(f[t]) @ S + xp.outer(i[t], v[t]))


def hgrn2_of_layer(xp, h, N, q, k, v, lower_bounds, *, layer):
    share = xp.exp(lower_bounds) / xp.exp(lower_bounds).sum(0)
    bounds = xp.cumsum(share, 0) - share[0]
    return hgrn2(xp, h, N, q, k, v, lower_bound=bounds[layer])


def rwkv6(xp, h, N, q, k, v, log_decay, bonus):
    w = xp.exp(log_decay)
    update = lambda S, t: xp.diag(w[t]) @ S + xp.outer(k[t], v[t])
    read = lambda S, S_next, t, r: (S + xp.diag(bonus) @ xp.outer(k[t], v[t])).T @ r
    return outputs(xp, q, k, v, update, read)


def delta_net(xp, h, N, q, k, v, beta, *, normalise=True):
    if normalise:
        q, k = length_one(xp, q), length_one(xp, k)
    q, eye = q / np.sqrt(q.shape[-1]), np.eye(k.shape[-1])

    def update(S, t):
        return (eye - beta[t] * xp.outer(k[t], k[t])) @ S + beta[t] * xp.outer(k[t], v[t])

    return outputs(xp, q, k, v, update)


def gated_delta_net(xp, h, N, q, k, v, log_decay, beta):
    q, k = length_one(xp, q) / np.sqrt(q.shape[-1]), length_one(xp, k)
    alpha, eye = xp.exp(log_decay), np.eye(k.shape[-1])

    def update(S, t):
        erased = alpha[t] * (eye - beta[t] * xp.outer(k[t], k[t])) @ S
        return erased + beta[t] * xp.outer(k[t], v[t])

    return outputs(xp, q, k, v, update)


def kda(xp, h, N, q, k, v, log_decay, beta):
    q, k = length_one(xp, q) / np.sqrt(q.shape[-1]), length_one(xp, k)
    alpha, eye = xp.exp(log_decay), np.eye(k.shape[-1])

    def update(S, t):
        erased = (eye - beta[t] * xp.outer(k[t], k[t])) @ xp.diag(alpha[t]) @ S
        return erased + beta[t] * xp.outer(k[t], v[t])

    return outputs(xp, q, k, v, update)


def rwkv7(xp, h, N, q, k, v, log_decay, a, k_k, k_a):
    kappa, w = length_one(xp, k * k_k), xp.exp(log_decay)
    k = k * (1 - k_a + a * k_a)  # lerp(1, a, k_a)

    def update(S, t):
        return (xp.diag(w[t]) - xp.outer(a[t] * kappa[t], kappa[t])) @ S + xp.outer(k[t], v[t])

    return outputs(xp, q, k, v, update)


PAPERS = {
    Retention(chunk=4): retention,
    Lightning(chunk=4): lightning,
    Lightning(chunk=4, layer_fraction=0.75): functools.partial(lightning, fraction=0.75),
    GLA(chunk=4): gla,
    Mamba2(chunk=4): mamba2,
    HGRN2(chunk=4): hgrn2,
    HGRN2(chunk=4, lower_bound=0.3): functools.partial(hgrn2, lower_bound=0.3),
    HGRN2(chunk=4, layer=2, layers=4): functools.partial(hgrn2_of_layer, layer=2),
    HGRN2(chunk=4, layer=3, layers=4): functools.partial(hgrn2_of_layer, layer=3),
    RWKV6(chunk=4): rwkv6,
    DeltaNet(chunk=4): delta_net,
    DeltaNet(chunk=4, l2_norm=False): functools.partial(delta_net, normalise=False),
    GatedDeltaNet(chunk=4): gated_delta_net,
    KDA(chunk=4): kda,
    RWKV7(chunk=4): rwkv7,
}
EACH = pytest.mark.parametrize("mechanism", PAPERS, ids=repr)
# one of each; the decays have a bidirectional form, the delta rules none
FIRST = list({type(m): m for m in reversed(PAPERS)}.values())[::-1]
DECAYS = [m for m in FIRST if not m.requires]
DELTAS = [m for m in FIRST if m.requires]
SOME = [m for m in FIRST if isinstance(m, (GLA, GatedDeltaNet))]


def by_paper(xp, mechanism, q, k, v, arrays):
    """The paper's loop for every batch row and query head, [B, T, N, D]."""
    (B, _, N, H), K = q.shape, k.shape[2]
    gates = mechanism.gate_shapes(num_heads=N, num_kv_heads=K, head_dim=H)

    def head(b, n):
        kv = n // (N // K)
        learned = lambda x: x[n * len(x) // N]  # a query head's, or its key head's
        own = {name: x[b, :, n] if name in gates else learned(x) for name, x in arrays.items()}
        return PAPERS[mechanism](xp, n, N, q[b, :, n], k[b, :, kv], v[b, :, kv], **own)

    return xp.stack([xp.stack([head(b, n) for n in range(N)], 1) for b in range(B)])


def exact(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def drawn(mechanism, **shape):
    """`inputs`, with learned arrays that differ from head to head; keys that fit their use."""
    q, k, v, arrays = inputs(mechanism, **shape)
    rng = np.random.default_rng(1)
    gates = mechanism.gates(num_heads=1, num_kv_heads=1, head_dim=1)
    move = lambda x: x + jnp.asarray(rng.uniform(-0.3, 0.3, x.shape), x.dtype)
    arrays = {name: x if name in gates else move(x) for name, x in arrays.items()}
    # without a norm, |k|^2 beta above 2 would blow the state up
    return q, k * 0.4 if getattr(mechanism, "l2_norm", True) is False else k, v, arrays


@pytest.mark.parametrize("T", at_once((1, 19), (19,)))
@pytest.mark.parametrize("mechanism", at_once(PAPERS, FIRST), ids=repr)
def test_equals_the_papers_token_loop(mechanism, T):
    arrays = drawn(mechanism, T=T, S=T)
    want = by_paper(np, mechanism, *exact(arrays))
    longer = dataclasses.replace(mechanism, chunk=64)
    for form in (mechanism, longer):
        call = jax.jit(functools.partial(form, mask=Causal()))
        q, k, v, own = arrays
        assert_close(call(q, k, v, **own), want, dtype="float32", what=f"chunk {form.chunk}")
    with jax.enable_x64(True):
        q, k, v, own = widen(arrays)
        assert_close(call(q, k, v, **own), want, dtype="float64", what="float64")


def gradients(call, arrays):
    """(output, gradients) of a projection that no symmetry cancels."""

    def loss(arrays):
        out = call(*arrays)
        return (out * jnp.sin(jnp.arange(out.size) * 0.7 + 0.3).reshape(out.shape)).sum(), out

    (_, out), grads = jax.value_and_grad(loss, has_aux=True)(arrays)
    return out, grads


def same_gradients(mechanism, *draws):
    """Output and gradients in float32 and float64 equal those of the paper's loop."""

    def causal(q, k, v, arrays):
        return mechanism(q, k, v, mask=Causal(), **arrays)

    def paper(q, k, v, arrays):
        return by_paper(jnp, mechanism, q, k, v, arrays)

    causal = jax.jit(functools.partial(gradients, causal))
    paper = jax.jit(functools.partial(gradients, paper))
    for n, arrays in enumerate(draws):
        got = {"float32": exact(causal(arrays))}
        with jax.enable_x64(True):
            got["float64"] = causal(widen(arrays))
            want, exact_gradients = exact(paper(widen(arrays)))
            for dtype, (out, found) in got.items():
                assert_close(out, want, dtype=dtype, what=f"draw {n}, {dtype}")
                for (path, x), y in zip(
                    jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(exact_gradients)
                ):
                    what = f"draw {n}, {dtype}, gradient of {jax.tree_util.keystr(path)}"
                    assert_close(x, y, dtype=dtype, kind="gradient", what=what)


SMALL = {"batch": (1,), "T": 11, "S": 11, "N": 2, "K": 1, "H": 4, "D": 3}


@pytest.mark.slow
@EACH
def test_gradients_equal_the_papers(mechanism):
    same_gradients(mechanism, drawn(mechanism, **SMALL))


def extreme(mechanism, rng):
    """Gates at the ends of their ranges, zero keys and queries, values that do not change."""
    q, k, v, arrays = drawn(mechanism, **SMALL)
    T = SMALL["T"]
    ends = {
        "log_decay": [0.0, -1e4, -np.inf, -0.5],
        "beta": [0.0, 1.0],
        "a": [0.0, 1.0],
        "dt": [0.0, 50.0, 0.5],
    }
    pick = lambda name, x: jnp.asarray(rng.choice(ends[name], x.shape), x.dtype)
    arrays = {name: pick(name, x) if name in ends else x for name, x in arrays.items()}
    if isinstance(mechanism, HGRN2):
        k = jnp.asarray(rng.choice([-1e4, -30.0, 0.0, 30.0, 1e4], k.shape), k.dtype)
    none = jnp.asarray(rng.uniform(size=(T, 1, 1)) < 0.3)
    # HGRN2 averages what it writes: of equal values its gradient would be rounding alone
    v = v if isinstance(mechanism, HGRN2) else jnp.ones_like(v)
    return q, jnp.where(none, 0, k), v, arrays


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("mechanism", FIRST, ids=repr)
def test_extreme_gates_are_exact_and_so_are_their_gradients(mechanism):
    draws = [extreme(mechanism, np.random.default_rng(seed)) for seed in range(3)]
    same_gradients(mechanism, *draws)


@pytest.mark.parametrize("mechanism", at_once(FIRST, SOME), ids=repr)
def test_zero_queries_and_keys_have_finite_gradients(mechanism):
    q, k, v, arrays = drawn(mechanism, **SMALL)
    causal = lambda q, k, v, arrays: mechanism(q, k, v, mask=Causal(), **arrays)
    out, grads = jax.jit(functools.partial(gradients, causal))((q * 0, k * 0, v, arrays))
    if not isinstance(mechanism, (Mamba2, HGRN2)):  # these write or skip without a key
        assert not np.asarray(out).any()
    for path, x in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(np.asarray(x)).all(), jax.tree_util.keystr(path)


@pytest.mark.parametrize("mechanism", at_once(DECAYS, SOME), ids=repr)
def test_bidirectional_is_forward_and_backward_less_the_token_itself(mechanism):
    q, k, v, arrays = drawn(mechanism)
    gates = mechanism.gates(num_heads=1, num_kv_heads=1, head_dim=1)
    seen = jnp.arange(19) < jnp.array([[13], [19]])
    rows = lambda turn: {n: turn(x) if n in gates else x for n, x in arrays.items()}

    def call(turn, mask, seen):
        return mechanism(turn(q), turn(k), turn(v), mask=mask & Padding(keys=seen), **rows(turn))

    call = jax.jit(call, static_argnums=0)
    flip = lambda x: jnp.flip(x, 1)
    alone = lambda x: x.reshape(-1, 1, *x.shape[2:])  # every token a sequence of its own
    same = lambda x: x
    forward = call(same, Causal(), seen)
    backward = flip(call(flip, Causal(), flip(seen)))
    own = call(alone, FULL, alone(seen)).reshape(forward.shape)
    got = call(same, FULL, seen)
    assert_close(got, forward + backward - own, dtype="float32", what="bidirectional")


@pytest.mark.parametrize("mechanism", DELTAS, ids=repr)
def test_delta_rules_need_causal(mechanism):
    q, k, v, arrays = inputs(mechanism)
    with pytest.raises(NotImplementedError, match=f"mask: {mechanism.name} .* Causal"):
        mechanism(q, k, v, **arrays)


@pytest.mark.parametrize("mechanism", FIRST, ids=repr)
def test_a_gate_of_another_shape_is_named(mechanism):
    q, k, v, arrays = inputs(mechanism)
    for name in mechanism.gates(num_heads=4, num_kv_heads=2, head_dim=8):
        with pytest.raises(ValueError, match=f"{name}: expected .* got"):
            mechanism(q, k, v, mask=Causal(), **{**arrays, name: arrays[name][:, :-1]})


def test_settings_outside_their_range_are_named():
    with pytest.raises(ValueError, match=r"layer_fraction: expected 0 to 1, got 1\.5"):
        Lightning(layer_fraction=1.5)
    with pytest.raises(ValueError, match="lower_bound: expected 0 to 1, less than 1, got 1"):
        HGRN2(lower_bound=1)
    with pytest.raises(ValueError, match=r"lower_bound: expected 0 with layers=2, .* got 0\.5"):
        HGRN2(lower_bound=0.5, layers=2)
    with pytest.raises(ValueError, match="layer: expected 0 to 1, got 2"):
        HGRN2(layer=2, layers=2)


@pytest.mark.slow
def test_learned_bounds_reach_both_ends():
    """0 is no bound, and 1 forgets and writes nothing: exact, with gradients that are finite."""
    layer, none = HGRN2(chunk=4, layer=1, layers=3), HGRN2(chunk=4)
    q, k, v, arrays = drawn(layer, **SMALL)
    causal = lambda *arrays: layer(*arrays[:3], mask=Causal(), **arrays[3])
    causal = jax.jit(functools.partial(gradients, causal))
    at = lambda far: {"lower_bounds": arrays["lower_bounds"].at[:, 1].set(far)}
    for far, want in ((-500.0, none(q, k, v, mask=Causal())), (500.0, jnp.zeros((1, 11, 2, 3)))):
        out, found = causal((q, k, v, at(far)))
        assert_close(out, want, dtype="float32", what=f"{far}")
        assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(found))


@pytest.mark.slow
def test_the_skip_of_mamba2_follows_the_mask():
    """d v of the key at the query's own place: of another place under Causal(offset), and only if
    it is seen."""
    q, k, v, arrays = inputs(Mamba2(), T=7, S=7)
    skip = jax.jit(lambda mask: Mamba2(chunk=4)(q * 0, k, v, mask=mask, **arrays))
    heads = jnp.repeat(v, 2, 2)
    np.testing.assert_array_equal(skip(FULL), heads)
    np.testing.assert_array_equal(skip(Causal(-2))[:, 2:], heads[:, :-2])
    assert not np.asarray(skip(Causal(-2))[:, :2]).any()
    np.testing.assert_array_equal(skip(Padding(jnp.array([4, 7])))[0, :4], heads[0, :4])
    assert not np.asarray(skip(Padding(jnp.array([4, 7])))[0, 4:]).any()


@pytest.mark.slow
def test_deeper_layers_forget_less():
    for layer, form in enumerate(HGRN2.for_layers(4)):
        q, k, v, learned = inputs(form)
        start = HGRN2(lower_bound=layer / 4)(q, k, v, mask=Causal())
        assert_close(form(q, k, v, mask=Causal(), **learned), start, dtype="float32", what=layer)
    again = hgrn2_attention(q, k, v, mask=Causal(), layer=3, **learned)
    assert_close(again, start, dtype="float32", what="the function")
    with pytest.raises(TypeError, match="lower_bounds: HGRN2 takes no learned arrays"):
        hgrn2_attention(q, k, v, **learned)
    with pytest.raises(ValueError, match=r"lower_bounds: expected \[key heads, .*, got \[8\]"):
        hgrn2_attention(q, k, v, lower_bounds=jnp.ones(8))
    assert [m.layer_fraction for m in Lightning.for_layers(4)] == [0, 0.25, 0.5, 0.75]
    assert {m.chunk for m in HGRN2.for_layers(4, chunk=8)} == {8}


@pytest.mark.parametrize("kind", [HGRN2, RWKV6, RWKV7])
def test_a_layer_that_is_not_there_is_named(kind):
    with pytest.raises(ValueError, match=r"^layers: expected an integer from 1"):
        kind(layers=0)
    for layer in (-1, 2, 0.5, True):
        with pytest.raises(ValueError, match=f"^layer: expected 0 to 1, got {layer!r}$"):
            kind(layer=layer, layers=2)
