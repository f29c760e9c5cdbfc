"""Schedules and updates are as their papers write them; weight decay shrinks matrices, and nothing
that starts where its paper starts it for a reason."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn import MECHANISMS, RWKV7, Mamba2, Reformer, Routing
from attn.nn import Bahdanau, Encoder, EncoderConfig, LSTMNSeq2Seq, LuongSeq2Seq
from attn.nn.functional import learned
from experiments.config import Optimizer
from experiments.optimizer import FIXED, KEPT, decays, learning_rate, make_optimizer

SHRUNK = {
    *("kernel", "qkv", "out", "out_gate", "down", "up", "w1", "w2", "logits", "score_vector"),
    *("query_projection", "key_projection", "value_projection", "query_map", "key_map", "sorting"),
    *("key_down", "key_up", "value_down", "value_up", "conv", "control"),
    *("logit_mixing", "weight_mixing", "position_projection", "position_vector"),
    *("key_kernel", "value_kernel", "key_pool", "value_pool"),
}


def shrinking(mechanism, **changes) -> dict[tuple[str, ...], bool]:
    """Whether each array of an encoder around a mechanism decays, by the names on its path."""
    sizes = dict(vocab_size=5, max_length=8, classes=3, layers=2, width=8, heads=2, mlp_width=8)
    how = dict(mechanism=mechanism, head="token", pooling="none", **changes)
    model = nnx.eval_shape(lambda: Encoder(EncoderConfig(**sizes, **how), key=jax.random.key(0)))
    found = jax.tree.leaves_with_path(decays(nnx.state(model)))
    name = lambda part: str(getattr(part, "key", getattr(part, "name", "")))
    return {tuple(map(name, path)): shrinks for path, shrinks in found}


STEPS, PEAK, END = 11, 2e-3, 1e-4


def optax_schedule(name, warmup):
    """optax's own, whose first rate is 0: ours begins with its second."""
    if name == "rsqrt":  # Long Range Arena's, which optax does not have
        return lambda t: PEAK * min(1, t / max(warmup, 1)) / max(t, warmup) ** 0.5
    if name == "cosine":
        return optax.warmup_cosine_decay_schedule(0, PEAK, warmup, STEPS, END)
    last = PEAK if name == "constant" else END
    ramps = (0, PEAK, warmup), (PEAK, last, STEPS - warmup)
    return optax.join_schedules([optax.linear_schedule(*x) for x in ramps], [warmup])


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "rsqrt"])
def test_schedules_are_those_of_optax(name, warmup):
    end = END if name in ("linear", "cosine") else 0.0
    o = Optimizer(learning_rate=PEAK, schedule=name, warmup_steps=warmup, final_learning_rate=end)
    rate, theirs = learning_rate(o, STEPS), optax_schedule(name, warmup)
    counts = range(STEPS + 3)  # and it stays where it ended
    ours = [float(rate(n)) for n in counts]
    np.testing.assert_allclose(ours, [float(theirs(n + 1)) for n in counts], rtol=1e-5, atol=1e-9)


def test_an_update_is_adamw_of_the_clipped_gradient():
    o = Optimizer(learning_rate=0.1, schedule="constant", weight_decay=0.3, clip_norm=2.0, b1=0.8)
    optimizer = make_optimizer(
        types.SimpleNamespace(optimizer=o, train=types.SimpleNamespace(steps=5))
    )
    params = {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array([3.0])}
    state, p = optimizer.init(params), np.array([1.0, -2.0, 3.0])
    shrunk, m, v = np.array([1, 1, 0]), 0, 0
    for t, g in enumerate(([3.0, 0.0, 4.0], [0.1, -0.2, 0.3], [-6.0, 8.0, 0.0]), start=1):
        g = np.array(g)
        grads = {"kernel": jnp.array(g[:2]), "bias": jnp.array(g[2:])}
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        g = g * min(1, 2 / np.linalg.norm(g))
        m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        p = p - 0.1 * (step + 0.3 * shrunk * p)
    np.testing.assert_allclose(jnp.concatenate([params["kernel"], params["bias"]]), p, rtol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("mechanism", [RWKV7(), Mamba2()], ids=lambda m: m.name)
def test_matrices_decay_and_biases_scales_rates_and_shares_do_not(mechanism, scan):
    for path, shrinks in shrinking(mechanism, scan=scan).items():
        assert shrinks == (not KEPT & set(path)), path


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_array_is_known_to_decay_or_not_to(name):
    """An array of a new variant is put on one of the two lists."""
    for example in MECHANISMS[name].examples():
        for path, shrinks in shrinking(example).items():
            assert (SHRUNK if shrinks else KEPT) & set(path), path


@pytest.mark.parametrize("family", [Bahdanau, LuongSeq2Seq, LSTMNSeq2Seq])
def test_tables_of_recurrent_models_do_not_decay(family):
    more = {"max_length": 7} if family is LSTMNSeq2Seq else {}
    build = lambda: family(vocab_size=5, classes=4, width=6, **more, key=jax.random.key(0))
    shrinks = decays(nnx.state(nnx.eval_shape(build)))
    for table in ("source_table", "target_table"):
        assert jax.tree.leaves(shrinks[table]) == [False]
    assert any(jax.tree.leaves(shrinks))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Reformer(buckets=4, chunk=4), Routing(clusters=2, window=4)])
def test_what_no_gradient_reaches_is_not_counted_as_learned(mechanism):
    sizes = dict(vocab_size=5, max_length=8, classes=3, layers=1, width=8, heads=2, mlp_width=8)
    model = Encoder(EncoderConfig(**sizes, mechanism=mechanism), key=jax.random.key(0))
    graph, params = nnx.split(model)
    tokens = jnp.arange(24).reshape(3, 8) % 5
    loss = lambda params: jnp.square(nnx.merge(graph, params)(tokens)).sum()
    gradient = jax.tree.leaves_with_path(jax.grad(loss)(params))
    fixed = [(path, x) for path, x in gradient if any(name in str(path) for name in FIXED)]
    assert fixed
    assert not any(x.any() for _, x in fixed)
    total = sum(x.size for _, x in gradient)
    assert learned(params) == total - sum(x.size for _, x in fixed)
