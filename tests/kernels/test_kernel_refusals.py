"""Each kernel honours a request or refuses it by name; none drops anything silently."""

import dataclasses
import functools
import importlib.util
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import arrays

import attn
from attn import Causal, Padding, Segments, Window
from attn._platform import platform
from attn._turns import loops_are_slow
from attn.dense.dot_product import _call
from attn.kernels import cudnn
from attn.kernels.dispatch import IMPLEMENTATIONS, PREFERENCE, pick
from attn.kernels.tokamax import Tokamax
from attn.testing.cases import term_examples

KERNELS = {"cudnn": "gpu", "tokamax": "gpu", "splash": "tpu"}
asked_capability = cudnn.compute_capability  # before it is replaced
T = S = 19
LENGTHS = Padding(jnp.array([3, 19]))
IDS = jnp.zeros((2, T), jnp.int32)
HOLES = Padding(keys=jnp.ones((2, S), bool))
MASKS = {
    "Full": attn.FULL,
    **term_examples(T=T, S=S),
    "Window causal": Causal() & Window(4, 1),
    "Causal(1)": Causal(1),
    "Causal(-1)": Causal(-1),
    "Causal(18)": Causal(18),
    "Causal & lengths": Causal() & LENGTHS,
    "Window & lengths": Window(4, 0) & LENGTHS,
    "Causal & Segments": Causal() & Segments(IDS, IDS),
    "all three": Causal() & Segments(IDS, IDS) & LENGTHS,
    "keys": HOLES,
    "queries": Padding(queries=jnp.ones((2, T), bool)),
    "Global & lengths": attn.Global((0,)) & LENGTHS,
    "Global & keys": attn.Global((0,)) & HOLES,
    "Global & Segments": attn.Global((0,)) & Segments(IDS, IDS),
    "~lengths": ~LENGTHS,
    "Causal | lengths": Causal() | LENGTHS,
}
STATIC = {
    "Dilated", "Prefix", "Global", "Strided", "Fixed", "Random", "Blocks", "Axial", "Causal(-1)",
}  # fmt: skip
FEW = {
    "Full", "Causal", "Window causal", "Causal(18)", "Padding", "Causal & lengths", "queries",
}  # fmt: skip
HONOURED = {
    "cudnn": FEW,
    "tokamax": FEW | {"Window", "Causal(1)"},
    "splash": set(MASKS) - {"Array", "Global & keys", "Global & Segments", "~lengths",
                            "Causal | lengths"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def machines(monkeypatch):
    """A Hopper, and a tokamax that is installed and agrees to everything."""
    found = importlib.util.find_spec
    monkeypatch.setattr(cudnn, "compute_capability", lambda: (9, 0))
    monkeypatch.setattr(Tokamax, "_own_refusal", lambda self, call: None)
    there = lambda name: True if name == "tokamax" else found(name)
    monkeypatch.setattr(importlib.util, "find_spec", there)


def call_on(platform, q, k, v, *, mask=attn.FULL, bias=None, scale=None, logit_cap=None,
            rate=0.0, key=None, block=None, return_lse=False):  # fmt: skip
    call = _call(q, k, v, mask, bias, scale, logit_cap, rate, key, block, return_lse=return_lse)
    return dataclasses.replace(call, platform=platform)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_are_honoured_or_named(name, mask):
    call = call_on(KERNELS[name], *arrays(dtype=jnp.bfloat16), mask=MASKS[mask])
    reason = IMPLEMENTATIONS[name].refusal(call)
    if mask in HONOURED[name]:
        assert reason is None
        return
    assert reason.startswith("mask: ")
    with pytest.raises(NotImplementedError, match=f"{name}: mask: .*'blockwise' honours"):
        pick(call, name)
    assert pick(call, (name, "blockwise")) == "blockwise"
    if mask in STATIC | {"Array", "Segments"} and name != "splash" and mask != "Causal(-1)":
        assert mask in reason


OPTIONS = {
    "bias of indices": (
        {"bias": attn.Alibi(jnp.ones(4))},
        {"cudnn": "bias", "tokamax": "bias", "splash": "bias"},
    ),
    "bias array": ({"bias": jnp.zeros((1, 4, T, S))}, {"cudnn": "bias", "splash": "bias"}),
    "logit_cap": ({"logit_cap": 5.0}, {"cudnn": "logit_cap"}),
    "logit_cap and bias": (
        {"logit_cap": 5.0, "bias": jnp.zeros((1, 4, T, S))},
        {"cudnn": "bias", "tokamax": "logit_cap", "splash": "bias"},
    ),
    "scale": ({"scale": -0.3}, {}),
    "scale of NumPy": ({"scale": np.float32(0.3)}, {}),
    "scale for each head": ({"scale": jnp.ones(4)}, {"cudnn": "scale", "tokamax": "scale"}),
    "return_lse": (
        {"return_lse": True},
        {"cudnn": "return_lse", "tokamax": "return_lse", "splash": "return_lse"},
    ),
    "dropout": (
        {"rate": 0.5, "key": jax.random.key(0)},
        {"cudnn": "dropout_rate", "tokamax": "dropout_rate", "splash": "dropout_rate"},
    ),
    "block": (
        {"block": 8},
        {"materialized": "block", "cudnn": "block", "tokamax": "block", "splash": "block"},
    ),
}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_are_honoured_or_named(name, option):
    given, refused = OPTIONS[option]
    call = call_on(KERNELS.get(name, "cpu"), *arrays(dtype=jnp.bfloat16), **given)
    reason = IMPLEMENTATIONS[name].refusal(call)
    assert (reason is None) == (name not in refused)
    assert reason is None or reason.startswith(refused[name])


SHAPES = {
    "bfloat16": ({"dtype": jnp.bfloat16}, {}),
    "float16": ({"dtype": jnp.float16}, {"splash": "q: "}),
    "float32": ({"dtype": jnp.float32}, {"cudnn": "q: "}),
    "one key head": ({"K": 1}, {}),
    "widths": ({"H": 5, "D": 12}, {}),
    "width 256": ({"H": 256}, {}),
    "width 264": ({"D": 257}, {"cudnn": "q, v: "}),
    "no batch axis": ({"batch": ()}, {}),
    "no rows": ({"batch": (0,)}, dict.fromkeys(KERNELS, "q, k, v: ")),
    "no queries": ({"T": 0}, dict.fromkeys(KERNELS, "q, k, v: ")),
    "no keys": ({"S": 0}, dict.fromkeys(KERNELS, "q, k, v: ")),
    "no width": ({"D": 0}, dict.fromkeys(KERNELS, "q, k, v: ")),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_dtypes_are_honoured_or_named(name, shape):
    given, refused = SHAPES[shape]
    call = call_on(KERNELS[name], *arrays(**{"dtype": jnp.bfloat16, **given}))
    reason = IMPLEMENTATIONS[name].refusal(call)
    assert (reason is None) == (name not in refused)
    assert reason is None or reason.startswith(refused[name])


def test_float64_is_refused_by_all():
    with jax.enable_x64(True):
        for name, platform in KERNELS.items():
            call = call_on(platform, *arrays(dtype=np.float64))
            assert "float64" in IMPLEMENTATIONS[name].refusal(call)


@pytest.mark.parametrize(("capability", "width"), [((8, 0), 136), ((7, 5), 64), ((0,), 64)])
def test_cudnn_asks_what_gpu_it_is(monkeypatch, capability, width):
    monkeypatch.setattr(cudnn, "compute_capability", lambda: capability)
    call = call_on("gpu", *arrays(H=width, dtype=jnp.bfloat16))
    reason = IMPLEMENTATIONS["cudnn"].refusal(call)
    assert "head widths up to 128" in reason if capability == (8, 0) else "NVIDIA" in reason


@pytest.mark.parametrize("name", KERNELS)
def test_the_wrong_platform_is_named(name):
    q, k, v = arrays(dtype=jnp.bfloat16)
    with pytest.raises(NotImplementedError, match=f"{name}: platform: .*runs on cpu"):
        attn.dot_product_attention(q, k, v, implementation=name)
    assert attn.picked(q, k, v, implementation=[name, "materialized"]) == "materialized"


@pytest.mark.parametrize("device", ["cpu", jax.devices("cpu")[0]], ids=["name", "device"])
def test_the_default_device_decides_where_another_platform_is_there(device, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (platform(), loops_are_slow()) == ("gpu", True)
    with jax.default_device(device):
        assert (platform(), loops_are_slow()) == ("cpu", False)
        assert attn.picked(*arrays(dtype=jnp.bfloat16)) == "blockwise"


def test_the_capability_is_the_default_devices(monkeypatch):
    """It was that of the first device, by which a GPU chosen where a CPU is first lost cuDNN."""
    cpu, first = jax.devices("cpu")[0], types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [first])
    assert asked_capability() == (9, 0)
    with jax.default_device(cpu):
        assert asked_capability() == (0,)


def test_sinks_are_looked_at_before_anything_is_picked():
    q, k, v = arrays()
    N = q.shape[-2]
    for run in (attn.picked, attn.dot_product_attention):
        with pytest.raises(ValueError, match=rf"sinks: expected \[{N}\], got \[{N + 1}\]"):
            run(q, k, v, sinks=jnp.zeros(N + 1))
        with pytest.raises(TypeError, match="sinks"):
            run(q, k, v, sinks=jnp.zeros(N, int))
    # one was taken for all heads
    with pytest.raises(ValueError, match=rf"^sinks: expected \[{N}\], got \[1\]"):
        attn.dense_attention(q, k, v, mask=attn.FULL, sinks=jnp.zeros(1))
    with pytest.raises(TypeError, match=r"^sinks: expected an array of floats, got float"):
        attn.dense_weights(q, k, mask=attn.FULL, sinks=0.0)


@pytest.mark.parametrize(
    ("platform", "best"), [("gpu", "cudnn"), ("tpu", "splash"), ("cpu", "blockwise")]
)
def test_default_is_the_platforms_best_that_can(platform, best):
    narrow = arrays(dtype=jnp.bfloat16)
    assert pick(call_on(platform, *narrow), None) == best
    assert pick(call_on(platform, *narrow, bias=attn.Alibi(jnp.ones(4))), None) == "blockwise"
    assert pick(call_on(platform, *arrays(T=3, dtype=jnp.bfloat16)), None) == "materialized"
    assert pick(call_on(platform, *arrays(T=3), block=8), None) == "blockwise"
    assert pick(call_on(platform, *arrays(batch=(0,), dtype=jnp.bfloat16)), None) == "blockwise"
    assert PREFERENCE[platform][-1] == "blockwise"


@pytest.mark.parametrize(
    ("axes", "best"), [((), "blockwise"), ("r", "blockwise"), ("rc", "splash")]
)
def test_by_default_splash_runs_only_what_is_not_divided_among_tpus(axes, best, monkeypatch):
    """It raised in every program for several TPUs, of rows sharded by jit, say."""
    call = call_on("tpu", *arrays(dtype=jnp.bfloat16))
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    found = []

    def inside(x):
        found.append(pick(call, None))
        return x

    # jax 0.12 has explicit axes here by default, along which the array would have to be divided
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 2), ("r", "c"), axis_types=auto)
    spec, manual = jax.sharding.PartitionSpec(*axes), frozenset(axes)
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    run = shard(inside, axis_names=manual) if manual else inside
    jax.eval_shape(jax.jit(run), jax.ShapeDtypeStruct((2, 2), jnp.float32))
    assert found == [best]


def test_tokamax_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = IMPLEMENTATIONS["tokamax"].refusal(call_on("gpu", *arrays()))
    assert "attn-lab[kernels]" in reason


def test_what_tokamax_itself_lacks_is_named(monkeypatch):
    monkeypatch.undo()  # the tokamax that agrees
    monkeypatch.setitem(sys.modules, "tokamax", None)
    reason = Tokamax()._own_refusal(call_on("gpu", *arrays()))
    assert "cannot be imported" in reason
    assert "attn-lab[kernels]" in reason
