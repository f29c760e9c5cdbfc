"""Every mechanism is compiled for a TPU, where there is a compiler for one: XLA's is no dependency,
and aborts the process where it meets an error in itself."""

import jax
import pytest
from tiers import FEW, in_ci

import attn
from attn.testing.cases import SHAPE
from experiments.measure.cost import Shape
from experiments.studies.tpu.measure import HOW, LIBRARY, Settings, alone, has_compiler

B, T, N, K, H = (*SHAPE["batch"], *(SHAPE[axis] for axis in ("T", "N", "K", "H")))
compiler = pytest.mark.skipif(not has_compiler(), reason=f"{LIBRARY} names no compiler: {HOW}")


@compiler
@pytest.mark.parametrize("name", in_ci(attn.MECHANISMS, (*FEW, "gla")))
def test_it_compiles(name):
    found = alone(name, Settings(shape=Shape(B, T, N, K, H)))
    assert set(found) == {"forward", "forward + backward"}, found


@compiler
@pytest.mark.slow
def test_softmax_is_run_by_the_kernel_for_tpus():
    found = alone("softmax", Settings(shape=Shape(1, 256, 2, 1, 64, "bfloat16")))
    assert all(program["kernel"] for program in found.values())


@compiler
@pytest.mark.parametrize("name", in_ci(attn.MECHANISMS, FEW))
def test_rows_on_four_chips_stay_there(name):
    """Softmax raised: XLA cannot divide a kernel of Pallas among chips."""
    found = alone(name, Settings(topology="v5e:2x2", shape=Shape(4, T, N, K, H)))
    assert "error" not in found, found
    learned = attn.MECHANISMS[name]().init(
        jax.random.key(0), num_heads=N, num_kv_heads=K, head_dim=H, value_dim=H, max_length=T
    )
    assert found["forward"]["moved"] == []
    # of an array that all rows share, each chip has a part of the gradient
    assert found["forward + backward"]["moved"] in ([[], ["all-reduce"]] if learned else [[]])
    assert not any(program["kernel"] for program in found.values())


@compiler
@pytest.mark.slow
def test_how_the_process_ended_is_told():
    assert "KeyError: 'sofmtax'" in alone("sofmtax", Settings())["error"]
