"""fla's kernels get our arrays as its naive forms do, which stand in for them without a GPU."""

import dataclasses
import importlib.util
import pathlib

import pytest

from attn import MECHANISMS
from experiments.measure import cost, fla_peers, linearized
from experiments.measure.options import Options
from experiments.measure.suites import suites
from experiments.measure.turns import MODES

torch = pytest.importorskip("torch")
pytest.importorskip("einops")
FLA = importlib.util.find_spec("fla")
if FLA is None:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)

NAIVE = {
    "linear_attn": "naive_recurrent_linear_attn",
    "retention": "naive_retention",
    "simple_gla": "naive_recurrent_simple_gla",
    "gla": "naive_recurrent_gla",
    "delta_rule": "delta_rule_recurrence",
    "gated_delta_rule": "naive_recurrent_gated_delta_rule",
    "kda": "naive_recurrent_kda",
}
HEAD_FIRST = ("retention", "delta_rule")


def length_one(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def naive(module, name):
    """A naive form that takes what the kernel does."""
    path = pathlib.Path(next(iter(FLA.submodule_search_locations)), "ops", module, "naive.py")
    spec = importlib.util.spec_from_file_location("fla_naive", path)
    read = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(read)
    define = getattr(read, NAIVE[module])

    def kernel(q, k, v, *gates, use_qk_l2norm_in_kernel=False, **settings):
        assert q.dtype == k.dtype == v.dtype
        assert all(x.dtype == torch.float32 for x in gates)
        if use_qk_l2norm_in_kernel:
            q, k = length_one(q), length_one(k)
        if module == "gated_delta_rule":
            gates = gates[::-1]  # it takes beta first
        if module not in HEAD_FIRST:
            return define(q, k, v, *gates, **settings)[0], None
        out = define(*(x.transpose(1, 2) for x in (q, k, v, *gates)), **settings)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2), None

    return kernel


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As there, but for the kernels and where the tensors are."""
    monkeypatch.setattr(linearized, "on_gpu", lambda: True)
    monkeypatch.setattr(fla_peers, "on_gpu", lambda: True)
    monkeypatch.setattr(fla_peers, "found", naive)


def rows(**changes):
    small = Options(lengths=(70,), heads=((4, 2),), widths=(8,), rounds=3, against=("fla",))
    suite = dataclasses.replace(suites()["linearized"], modes=MODES[1:], **changes)
    (both,) = suite.rows(small)
    return {row["contender"]: row for row in both}


@pytest.mark.slow
def test_every_kernel_computes_what_our_variant_does(on_a_gpu):
    found = rows()
    peers = {f"fla {key}" for key in fla_peers.KERNELS}
    assert {name for name in found if name.startswith("fla")} == peers
    for name in peers:
        assert not found[name]["why"], found[name]
        assert 0 < found[name]["error"] < 1, found[name]
        assert found[name]["compile_seconds"] > 0


def test_kernels_take_their_gates_in_float32_and_give_all_gradients(on_a_gpu):
    shape = cost.Shape(B=1, T=64, N=2, K=2, H=8, dtype="bfloat16")
    for key in ("mamba2", "kda"):
        arrays = cost.arrays(MECHANISMS[key](), shape)
        found = fla_peers.kernels(key, arrays, shape.inputs(), MODES[1]).results()
        assert len(found) == 4 + len(arrays)
        assert found[4].shape == arrays[sorted(arrays)[0]].shape


def test_a_kernel_that_breaks_is_a_row_that_says_so(on_a_gpu, monkeypatch):
    def broken(module, name):
        def kernel(*_, **__):
            raise RuntimeError("out of resource: shared memory")

        return kernel if module == "kda" else naive(module, name)

    monkeypatch.setattr(fla_peers, "found", broken)
    found = rows(variants=("retention", "kda"))
    assert found["fla kda"]["why"] == "failed: RuntimeError: out of resource: shared memory"
    assert not found["fla retention"]["why"]


def test_without_triton_the_kernels_are_not_there():
    if importlib.util.find_spec("triton"):
        pytest.skip("Triton is installed")
    with pytest.raises(fla_peers.Unavailable, match="fla-core with Triton is not installed"):
        fla_peers.found("gla", "chunk_gla")
