"""attn.gates: each published form against its equation, and where it starts."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_mechanism import run

from attn import MECHANISMS, Causal, rwkv6_attention
from attn.gates import Dense, Gate, LowRank, Ramp, StepDecay, minus_exp, time_step
from attn.linearized.delta_net import DeltaNet
from attn.linearized.gated_delta_net import GatedDeltaNet
from attn.linearized.gla import GLA
from attn.linearized.kda import KDA
from attn.linearized.mamba2 import Mamba2
from attn.linearized.rwkv6 import RWKV6
from attn.linearized.rwkv7 import RWKV7
from attn.nn.attention import Attention
from attn.nn.gates import Gates
from attn.nn.keys import fold

W, N, H = 24, 3, 5
KEY = jax.random.key(3)
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, W)), jnp.float32)

SIZES = dict(num_heads=N, num_kv_heads=N, head_dim=H)
RECORDS = {
    "gla log_decay": GLA(),
    "mamba2 dt": Mamba2(),
    "delta_net beta": DeltaNet(negative_eigenvalues=True),
    "gated_delta_net log_decay": GatedDeltaNet(),
    "gated_delta_net beta": GatedDeltaNet(),
    "kda log_decay": KDA(),
    "rwkv6 log_decay": RWKV6(),
    "rwkv7 log_decay": RWKV7(),
    "rwkv7 a": RWKV7(),
}
FORMS = {name: record.gates(**SIZES)[name.split()[1]] for name, record in RECORDS.items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


EQUATIONS = {
    "gla log_decay": lambda x, a: np.log(sigmoid(x @ a["down"] @ a["up"] + a["bias"])) / 16,
    "mamba2 dt": lambda x, a: softplus(x @ a["kernel"] + a["bias"]),
    "delta_net beta": lambda x, a: 2 * sigmoid(x @ a["kernel"]),
    "gated_delta_net log_decay": lambda x, a: (
        -np.exp(a["a_log"]) * softplus(x @ a["kernel"] + a["bias"])
    ),
    "gated_delta_net beta": lambda x, a: sigmoid(x @ a["kernel"]),
    "kda log_decay": lambda x, a: (
        -np.repeat(np.exp(a["a_log"]), H) * softplus(x @ a["down"] @ a["up"] + a["bias"])
    ),
    "rwkv6 log_decay": lambda x, a: -np.exp(a["bias"] + np.tanh(x @ a["down"]) @ a["up"]),
    "rwkv7 log_decay": lambda x, a: (
        -np.exp(-0.5) * sigmoid(a["bias"] + np.tanh(x @ a["down"]) @ a["up"])
    ),
    "rwkv7 a": lambda x, a: sigmoid(a["bias"] + x @ a["down"] @ a["up"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_equals_its_equation(form):
    gate = FORMS[form]
    arrays = gate.init(KEY, W)
    # as if trained: RWKV starts its first matrix at 0
    arrays = {name: x + 0.1 * jax.random.normal(KEY, x.shape) for name, x in arrays.items()}
    got = gate(X, **arrays)
    assert got.shape == (2, 7, *gate.shape)
    exact = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    want = EQUATIONS[form](np.asarray(X, np.float64), exact).reshape(got.shape)
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-7)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_float32_and_stays_finite(form):
    gate = FORMS[form]
    arrays = gate.init(KEY, W)
    assert {x.dtype for x in arrays.values()} == {np.dtype("float32")}
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert gate(X.astype(jnp.bfloat16), **arrays).dtype == jnp.float32
    for scale in (0.0, 30.0):
        loss = lambda arrays, x: gate(x, **arrays).sum()
        gradient = jax.grad(loss, argnums=(0, 1))(arrays, X * scale)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


# the least and the greatest of every gate before training, for an x of 0
STARTS = {
    "gla log_decay": (np.log(0.5) / 16, np.log(0.5) / 16),
    "mamba2 dt": (0.001, 0.1),
    "delta_net beta": (1.0, 1.0),
    "gated_delta_net log_decay": (-1.6, 0.0),
    "gated_delta_net beta": (0.5, 0.5),
    "kda log_decay": (-1.6, -0.001),
    "rwkv6 log_decay": (-np.exp(-1.0), -np.exp(-6.0)),
    "rwkv7 log_decay": (-np.exp(-0.5) * sigmoid(3.0), -np.exp(-0.5) * sigmoid(-8.0)),
    "rwkv7 a": (sigmoid(-0.69), sigmoid(0.31)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_starts_as_published(form):
    gate = FORMS[form]
    start = np.asarray(gate(jnp.zeros((1, W)), **gate.init(KEY, W)))
    low, high = STARTS[form]
    assert low - 1e-6 <= start.min() <= start.max() <= high + 1e-6
    if "rwkv" in form:  # a ramp reaches both ends
        np.testing.assert_allclose([start.min(), start.max()], [low, high], rtol=1e-5)


APART = ("selected_k", "selected_v", "near_k", "near_v")  # keys and values, and no gates


@pytest.mark.parametrize("name", MECHANISMS)
def test_gates_are_in_their_ranges_and_shapes(name):
    mechanism = MECHANISMS[name].examples()[-1]
    ranges = {"log_decay": (-np.inf, 0), "beta": (0, 1), "a": (0, 1), "dt": (0, np.inf)}
    ranges |= {"gate": (0, 1)} | dict.fromkeys(APART, (-np.inf, np.inf))
    gates = run(Gates(W, mechanism.gates(**SIZES), key=KEY), 3 * X)
    shapes = {gate: x.shape[2:] for gate, x in gates.items()}
    assert shapes == mechanism.gate_shapes(**SIZES)
    for gate, x in gates.items():
        low, high = ranges[gate]
        assert np.isfinite(x).all()
        assert ((low <= x) & (x <= high)).all()


def test_an_extreme_rwkv6_gate_has_a_gradient_of_0():
    """exp(89) is infinite in float32: its decay of -inf is one to 0, its gradient was 0 * inf."""
    one = jnp.ones((1, 3, 1, 2))

    def loss(x):
        return rwkv6_attention(
            one, one, one, mask=Causal(), log_decay=minus_exp(x), bonus=one[0, 0]
        ).sum()

    assert not jax.grad(loss)(jnp.full(one.shape, 89.0)).any()


def test_gates_are_values():
    for name, record in RECORDS.items():
        again = record.gates(**SIZES)[name.split()[1]]
        assert (again, hash(again)) == (FORMS[name], hash(FORMS[name]))


@pytest.mark.parametrize("name", MECHANISMS)
def test_gates_can_be_pickled(name):
    for record in MECHANISMS[name].examples():
        asked = [record.gates(**SIZES), record.blending(num_kv_heads=N, head_dim=H)]
        if record.output_gate is not None:
            asked.append(record.gating(num_heads=N, head_dim=H))
        assert pickle.loads(pickle.dumps(asked)) == asked


@pytest.mark.parametrize("name", ["forgetting", "rwkv6"])
def test_a_layer_with_gates_can_be_pickled(name):
    layer = Attention(W, num_heads=N, mechanism=MECHANISMS[name](), max_length=7, key=KEY)
    (graph, params), (again, held) = map(nnx.split, (layer, pickle.loads(pickle.dumps(layer))))
    assert (again, hash(again)) == (graph, hash(graph))
    jax.tree.map(np.testing.assert_array_equal, held, params)


def test_time_steps_start_log_uniform_between_a_thousandth_and_a_tenth():
    step = time_step((4000,))
    start = np.asarray(step(jnp.zeros((1, W)), **step.init(KEY, W)))[0]
    np.testing.assert_array_less([0.00099, -0.1001], [start.min(), -start.max()])
    quarters = np.quantile(np.log10(start), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quarters, [-2.5, -2, -1.5], atol=0.05)


@pytest.mark.parametrize("rates", [(1.0, 16.0), (0.0, 16.0)])
def test_rates_start_uniform_and_never_at_0(rates):
    decay = StepDecay(step=time_step((4000,)), rates=rates)
    a_log = decay.init(KEY, W)["a_log"]
    assert np.isfinite(a_log).all()
    start = np.exp(np.asarray(a_log, np.float64))
    assert rates[0] < start.min() < start.max() < rates[1] + 1e-4
    want = np.quantile(rates, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(np.quantile(start, [0.25, 0.5, 0.75]), want, atol=0.4)


def test_a_ramp_counts_channels_and_zigzags_within_heads():
    # RWKV's w0 of its first layer, channel after channel
    C, want = N * H, []
    for n in range(C):
        middle = (H - 1) / 2
        zigzag = (n % H - middle) / middle
        want.append(-6 + 6 * n / (C - 1) + 0.5 + 2.5 * zigzag * abs(zigzag))
    got = Ramp(low=-5.5, high=0.5, zigzag=2.5)(KEY, (N, H), jnp.float32)
    np.testing.assert_allclose(got, np.reshape(want, (N, H)), rtol=1e-5, atol=1e-5)


def test_initializers_reach_their_matrices():
    zeros = jax.nn.initializers.zeros
    low = LowRank(rank=4, down=zeros, up=jax.nn.initializers.constant(0.25))
    arrays = Gate(shape=(N,), project=low).init(KEY, W)
    assert {name: x.shape for name, x in arrays.items()} == {
        "down": (W, 4),
        "up": (4, N),
        "bias": (N,),
    }
    assert not arrays["down"].any()
    assert (arrays["up"] == 0.25).all()


@pytest.mark.parametrize(
    ("name", "activation"),
    [("log_decay", jax.nn.log_sigmoid), ("beta", jax.nn.sigmoid), ("shift", lambda x: x)],
)
def test_a_bare_shape_is_the_linear_layer_it_always_was(name, activation):
    gates = Gates(W, {name: (N, H)}, key=KEY)
    linear = nnx.Linear(W, N * H, rngs=nnx.Rngs(fold(KEY, name)))
    for array in ("kernel", "bias"):
        want = getattr(linear, array)[...]
        np.testing.assert_array_equal(getattr(gates.projections[name], array)[...], want)
    want = activation(linear(X)).reshape(2, 7, N, H)
    np.testing.assert_allclose(run(gates, X)[name], want, rtol=1e-6, atol=1e-6)


def test_the_arrays_of_a_gate_are_parameters_by_name():
    gates = Gates(W, {"log_decay": FORMS["kda log_decay"], "beta": (N,)}, key=KEY)
    names = {name: set(arrays) for name, arrays in nnx.state(gates)["projections"].items()}
    assert names == {"log_decay": {"down", "up", "bias", "a_log"}, "beta": {"kernel", "bias"}}
    assert {x.dtype for x in jax.tree.leaves(nnx.state(gates, nnx.Param))} == {np.dtype("float32")}
    out = run(gates, X)
    assert (out["log_decay"] < 0).all()
    assert out["log_decay"].shape == (2, 7, N, H)


def test_no_two_arrays_share_a_draw():
    # all of one shape, as one key (split(key)[1] is fold_in(key, 1)) would give the same numbers
    draw, size = jax.nn.initializers.uniform(15.0), 20
    project = LowRank(rank=size, down=draw, up=draw)
    gates = {
        "low rank": StepDecay(step=Gate(shape=(size,), project=project, bias=draw)),
        "dense": StepDecay(step=Gate(shape=(size,), project=Dense(kernel=draw), bias=draw)),
    }
    for gate in gates.values():
        arrays = gate.init(KEY, size)
        first = [np.ravel(x)[:size] for name, x in arrays.items() if name != "a_log"]
        first.append(16 - np.exp(arrays["a_log"]))
        apart = np.corrcoef(first) - np.eye(len(first))
        assert np.abs(apart).max() < 0.8
